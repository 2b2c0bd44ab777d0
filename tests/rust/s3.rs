//! Conditions and limits on the wire: a small S3 in this process, with the client's own retries in the path.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pds::ErrorKind;
use pds::clock::Clock;
use pds::store::{Condition, ConditionSupport, SendLimit, Store, StoreBuilder};

use crate::odf_outcomes::OffsetClock;
use crate::stores::{check_conditions, check_staged};

#[derive(Debug, Clone, Default)]
struct Request {
    method: String,
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// How a request is answered that is not answered as it should be.
#[derive(Debug, Clone, Copy)]
enum ServerFault {
    /// Carried out, answered 500.
    ErrorAfterEffect,
    /// Carried out, never answered.
    NoResponse,
}

#[derive(Debug)]
struct Server {
    conditions: ConditionSupport,
    objects: BTreeMap<String, (Vec<u8>, String)>,
    uploads: BTreeMap<String, BTreeMap<u32, (Vec<u8>, String)>>,
    count: u32,
    requests: Vec<Request>,
    fault: Option<(&'static str, ServerFault)>,
}

type SharedServer = Arc<Mutex<Server>>;

fn serve(conditions: ConditionSupport) -> (SharedServer, Store) {
    let (server, options) = start(conditions);
    let store = StoreBuilder::parse("s3://bucket", &options).unwrap();
    (server, store.build().unwrap())
}

/// A server and the options of stores on it. It runs as long as the process, so no other one has its port.
fn start(conditions: ConditionSupport) -> (SharedServer, BTreeMap<String, String>) {
    let server = Arc::new(Mutex::new(Server {
        conditions,
        objects: BTreeMap::new(),
        uploads: BTreeMap::new(),
        count: 0,
        requests: Vec::new(),
        fault: None,
    }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let shared = Arc::clone(&server);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || serve_connection(stream, &shared));
        }
    });
    let settings = [
        ("aws_endpoint", endpoint.as_str()),
        ("aws_access_key_id", "id"),
        ("aws_secret_access_key", "secret"),
        ("retry_timeout", "5"),
    ];
    let options = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
    (server, BTreeMap::from(options))
}

fn serve_connection(stream: TcpStream, shared: &SharedServer) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(request) = read_request(&mut reader) {
        let (fault, (status, headers, body)) = {
            let mut server = shared.lock().unwrap();
            server.requests.push(request.clone());
            let fault = server.fault.filter(|(method, _)| *method == request.method);
            (fault.map(|(_, fault)| fault), server.handle(&request))
        };
        let (status, headers, body) = match fault {
            None => (status, headers, body),
            Some(ServerFault::ErrorAfterEffect) => (500, String::new(), "<Error/>".to_owned()),
            Some(ServerFault::NoResponse) => {
                // Until the client closes the connection.
                let _ = reader.read(&mut [0]);
                return;
            }
        };
        let response_body = if request.method == "HEAD" {
            ""
        } else {
            body.as_str()
        };
        let length = body.len();
        let response = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{headers}\r\n{response_body}"
        );
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader
        .read_line(&mut line)
        .ok()
        .filter(|read_bytes| *read_bytes > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = url::form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers
        .get("content-length")
        .map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let key = path
        .trim_start_matches("/bucket")
        .trim_start_matches('/')
        .to_owned();
    Some(Request {
        method,
        key,
        query,
        headers,
        body,
    })
}

type Response = (u16, String, String);

fn ok_response(body: impl Into<String>) -> Response {
    (200, String::new(), body.into())
}

fn error_response(status: u16, code: &str) -> Response {
    (
        status,
        String::new(),
        format!("<Error><Code>{code}</Code></Error>"),
    )
}

impl Server {
    fn failed_precondition(&self, request: &Request) -> Option<Response> {
        let current = self.objects.get(&request.key).map(|(_, e_tag)| e_tag);
        let if_match = request.headers.get("if-match");
        if request.headers.contains_key("if-none-match") && current.is_some() {
            return Some(error_response(412, "PreconditionFailed"));
        }
        match (if_match, current) {
            (Some(_), None) => Some(error_response(404, "NoSuchKey")),
            (Some(if_match), Some(current)) if if_match != current => {
                Some(error_response(412, "PreconditionFailed"))
            }
            _ => None,
        }
    }

    fn put(&mut self, key: &str, bytes: Vec<u8>) -> String {
        self.count += 1;
        let e_tag = format!("\"tag-{}\"", self.count);
        self.objects.insert(key.to_owned(), (bytes, e_tag.clone()));
        e_tag
    }

    fn handle(&mut self, request: &Request) -> Response {
        let upload = request.query.get("uploadId").cloned();
        match (request.method.as_str(), upload) {
            ("POST", Some(upload)) => self.complete(request, &upload),
            ("POST", None) if request.query.contains_key("uploads") => {
                self.count += 1;
                let id = format!("upload {}", self.count);
                self.uploads.insert(id.clone(), BTreeMap::new());
                ok_response(format!(
                    "<R><Bucket>b</Bucket><Key>k</Key><UploadId>{id}</UploadId></R>"
                ))
            }
            ("POST", None) => {
                let text = String::from_utf8_lossy(&request.body).into_owned();
                let mut xml = "<DeleteResult>".to_owned();
                for key in text.split("<Key>").skip(1) {
                    let key = key.split('<').next().unwrap();
                    self.objects.remove(key);
                    write!(xml, "<Deleted><Key>{key}</Key></Deleted>").unwrap();
                }
                ok_response(xml + "</DeleteResult>")
            }
            ("PUT", Some(upload)) => {
                let Some(parts) = self.uploads.get_mut(&upload) else {
                    return error_response(404, "NoSuchUpload");
                };
                let number = request.query["partNumber"].parse().unwrap();
                let e_tag = format!("\"part-{number}\"");
                parts.insert(number, (request.body.clone(), e_tag.clone()));
                (200, format!("etag: {e_tag}\r\n"), String::new())
            }
            ("PUT", None) => self.failed_precondition(request).unwrap_or_else(|| {
                let e_tag = self.put(&request.key, request.body.clone());
                (200, format!("etag: {e_tag}\r\n"), String::new())
            }),
            ("GET", Some(upload)) => self.list_parts(request, &upload),
            ("GET" | "HEAD", None) if request.key.is_empty() => self.list(),
            ("GET" | "HEAD", None) => self.get(&request.key),
            ("DELETE", Some(upload)) => match self.uploads.remove(&upload) {
                Some(_) => (204, String::new(), String::new()),
                None => error_response(404, "NoSuchUpload"),
            },
            ("DELETE", None) => {
                if self.conditions.delete
                    && let Some(denied) = self.failed_precondition(request)
                {
                    return denied;
                }
                self.objects.remove(&request.key);
                (204, String::new(), String::new())
            }
            _ => error_response(501, "NotImplemented"),
        }
    }

    fn get(&self, key: &str) -> Response {
        let Some((bytes, e_tag)) = self.objects.get(key) else {
            return error_response(404, "NoSuchKey");
        };
        let date = "last-modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        // Contents of these tests are ASCII.
        (
            200,
            format!("etag: {e_tag}\r\n{date}"),
            String::from_utf8(bytes.clone()).unwrap(),
        )
    }

    fn list(&self) -> Response {
        let mut xml = "<ListBucketResult>".to_owned();
        for (key, (bytes, e_tag)) in &self.objects {
            let size = bytes.len();
            let date = "2020-01-01T00:00:00.000Z";
            write!(
                xml,
                "<Contents><Key>{key}</Key><LastModified>{date}</LastModified>"
            )
            .unwrap();
            write!(xml, "<ETag>{e_tag}</ETag><Size>{size}</Size></Contents>").unwrap();
        }
        ok_response(xml + "</ListBucketResult>")
    }

    /// One part a page.
    fn list_parts(&self, request: &Request, upload: &str) -> Response {
        let Some(parts) = self.uploads.get(upload) else {
            return error_response(404, "NoSuchUpload");
        };
        let marker = request
            .query
            .get("part-number-marker")
            .map_or(0, |text| text.parse().unwrap());
        let mut remaining = parts.range(marker + 1..);
        let mut xml = "<ListPartsResult>".to_owned();
        if let Some((number, (bytes, e_tag))) = remaining.next() {
            let (more, size, e_tag) = (
                remaining.next().is_some(),
                bytes.len(),
                e_tag.replace('"', "&quot;"),
            );
            write!(xml, "<IsTruncated>{more}</IsTruncated><NextPartNumberMarker>{number}</NextPartNumberMarker>").unwrap();
            write!(xml, "<Part><PartNumber>{number}</PartNumber><ETag>{e_tag}</ETag><Size>{size}</Size></Part>").unwrap();
        }
        ok_response(xml + "</ListPartsResult>")
    }

    fn complete(&mut self, request: &Request, upload: &str) -> Response {
        if !self.uploads.contains_key(upload) {
            return error_response(404, "NoSuchUpload");
        }
        if self.conditions.complete
            && let Some(denied) = self.failed_precondition(request)
        {
            return denied;
        }
        let parts = self.uploads.remove(upload).unwrap();
        let bytes: Vec<Vec<u8>> = parts.into_values().map(|(bytes, _)| bytes).collect();
        let e_tag = self.put(&request.key, bytes.concat());
        ok_response(format!(
            "<R><Location>l</Location><Bucket>b</Bucket><Key>k</Key><ETag>{e_tag}</ETag></R>"
        ))
    }
}

const S3_CONDITIONS: ConditionSupport = ConditionSupport {
    marker_versions: false,
    ..ConditionSupport::ALL
};

#[tokio::test(flavor = "multi_thread")]
async fn s3_conditional_requests_change_only_the_matching_version() {
    let (server, store) = serve(S3_CONDITIONS);
    assert_eq!(store.condition_support("c").await.unwrap(), S3_CONDITIONS);
    check_conditions(&store).await;
    check_staged(&store).await;
    let server = server.lock().unwrap();
    assert!(server.uploads.is_empty(), "{:?}", server.uploads.keys());
    assert!(server.objects.is_empty(), "{:?}", server.objects.keys());
    let conditional =
        |request: &&Request| request.method == "DELETE" && request.headers.contains_key("if-match");
    let deletes: Vec<_> = server.requests.iter().filter(conditional).collect();
    assert!(deletes.len() > 3);
    for delete in deletes {
        let signature = &delete.headers["authorization"];
        assert!(
            signature.contains("if-match"),
            "the condition is signed: {signature}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_that_a_store_ignores_are_detected() {
    for (delete, complete) in [(false, false), (true, false), (false, true)] {
        let conditions = ConditionSupport {
            delete,
            complete,
            marker_versions: false,
        };
        let (server, store) = serve(conditions);
        assert_eq!(store.condition_support("folder").await.unwrap(), conditions);
        let request_count = server.lock().unwrap().requests.len();
        assert_eq!(store.condition_support("folder").await.unwrap(), conditions);
        let server = server.lock().unwrap();
        assert_eq!(server.requests.len(), request_count, "once is enough");
        assert!(server.objects.is_empty() && server.uploads.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_probe_proved_holds_for_other_stores_for_five_minutes() {
    let (server, options) = start(S3_CONDITIONS);
    let clock = Arc::new(OffsetClock::default());
    let open = |url: &str| {
        let builder = StoreBuilder::parse(url, &options).unwrap();
        let clock = Arc::clone(&clock) as Arc<dyn Clock>;
        builder.with_clock(clock).build().unwrap()
    };
    let count_requests = || server.lock().unwrap().requests.len();
    let first = open("s3://bucket/a").condition_support("b").await.unwrap();
    assert_eq!(first, S3_CONDITIONS);
    let probe_requests = count_requests();
    assert!(probe_requests > 0);
    // Another server takes its place.
    server.lock().unwrap().conditions = ConditionSupport::NONE;
    for _ in 0..2 {
        let support = open("s3://bucket/c").condition_support("d").await.unwrap();
        assert_eq!(support, S3_CONDITIONS);
        clock.suspend(Duration::from_mins(4));
    }
    assert_eq!(count_requests(), probe_requests);
    let support = open("s3://bucket/a").condition_support("b").await.unwrap();
    assert_eq!(support, ConditionSupport::NONE);
    let probed_twice = count_requests();
    assert!(probed_twice > probe_requests);
    let support = open("s3://other/a").condition_support("b").await.unwrap();
    assert_eq!(support, ConditionSupport::NONE);
    assert!(count_requests() > probed_twice);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_limited_to_one_attempt_is_sent_once() {
    let (server, store) = serve(S3_CONDITIONS);
    let once = store.with_send_limit(SendLimit {
        deadline: None,
        once: true,
    });
    for method in ["DELETE", "PUT"] {
        {
            let mut server = server.lock().unwrap();
            server.requests.clear();
            server.fault = Some((method, ServerFault::ErrorAfterEffect));
        }
        let result = if method == "PUT" {
            once.put_if("x", "1".into(), &Condition::Always)
                .await
                .map(drop)
        } else {
            once.delete_if("x", &Condition::Always).await.map(drop)
        };
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("500"), "{error}");
        let request_count = server.lock().unwrap().requests.len();
        assert_eq!(request_count, 1, "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_stops_new_and_running_requests() {
    let (server, store) = serve(S3_CONDITIONS);
    let after = |time| SendLimit {
        deadline: Some(store.clock().monotonic() + time),
        once: false,
    };
    let past = store.with_send_limit(after(Duration::ZERO));
    let expired = past
        .put_if("x", "1".into(), &Condition::Absent)
        .await
        .unwrap_err();
    assert_eq!(expired.kind(), ErrorKind::Expired);
    assert!(server.lock().unwrap().requests.is_empty());
    for fault in [ServerFault::NoResponse, ServerFault::ErrorAfterEffect] {
        server.lock().unwrap().fault = Some(("PUT", fault));
        let soon = store.with_send_limit(after(Duration::from_millis(300)));
        let error = soon
            .put_if("x", "1".into(), &Condition::Always)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let request_count = server.lock().unwrap().requests.len();
        assert!(request_count > 0);
        // The client's retries would go on for five seconds.
        store.clock().sleep(Duration::from_millis(500)).await;
        assert_eq!(
            server.lock().unwrap().requests.len(),
            request_count,
            "{fault:?}"
        );
        assert!(soon.is_file("x").await.is_err());
    }
}
