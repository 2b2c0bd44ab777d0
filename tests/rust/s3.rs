//! Conditions and limits on the wire: a small S3 in this process, with the client's own retries in the path.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pds::ErrorKind;
use pds::store::{Condition, ConditionSupport, SendLimit, Store, StoreBuilder};

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
enum Fault {
    /// Carried out, answered 500.
    ErrorAfter,
    /// Carried out, never answered.
    Silence,
}

#[derive(Debug)]
struct Server {
    keeps: ConditionSupport,
    objects: BTreeMap<String, (Vec<u8>, String)>,
    uploads: BTreeMap<String, BTreeMap<u32, (Vec<u8>, String)>>,
    count: u32,
    seen: Vec<Request>,
    fault: Option<(&'static str, Fault)>,
}

type Shared = Arc<Mutex<Server>>;

fn serve(keeps: ConditionSupport) -> (Shared, Store) {
    let server = Arc::new(Mutex::new(Server {
        keeps,
        objects: BTreeMap::new(),
        uploads: BTreeMap::new(),
        count: 0,
        seen: Vec::new(),
        fault: None,
    }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let shared = Arc::clone(&server);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || answer_all(stream, &shared));
        }
    });
    let options = [
        ("aws_endpoint", endpoint.as_str()),
        ("aws_access_key_id", "id"),
        ("aws_secret_access_key", "secret"),
        ("retry_timeout", "5"),
    ];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let store = StoreBuilder::parse("s3://bucket", &BTreeMap::from(options)).unwrap();
    (server, store.build().unwrap())
}

fn answer_all(stream: TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(request) = read_request(&mut reader) {
        let (fault, (status, headers, body)) = {
            let mut server = shared.lock().unwrap();
            server.seen.push(request.clone());
            let fault = server.fault.filter(|(method, _)| *method == request.method);
            (fault.map(|(_, fault)| fault), server.handle(&request))
        };
        let (status, headers, body) = match fault {
            None => (status, headers, body),
            Some(Fault::ErrorAfter) => (500, String::new(), "<Error/>".to_owned()),
            Some(Fault::Silence) => {
                // Until the client closes the connection.
                let _ = reader.read(&mut [0]);
                return;
            }
        };
        let shown = if request.method == "HEAD" {
            ""
        } else {
            body.as_str()
        };
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{headers}\r\n{shown}");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
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

type Answer = (u16, String, String);

fn ok(body: impl Into<String>) -> Answer {
    (200, String::new(), body.into())
}

fn error(status: u16, code: &str) -> Answer {
    (
        status,
        String::new(),
        format!("<Error><Code>{code}</Code></Error>"),
    )
}

impl Server {
    fn denied(&self, request: &Request) -> Option<Answer> {
        let there = self.objects.get(&request.key).map(|(_, e_tag)| e_tag);
        let wanted = request.headers.get("if-match");
        if request.headers.contains_key("if-none-match") && there.is_some() {
            return Some(error(412, "PreconditionFailed"));
        }
        match (wanted, there) {
            (Some(_), None) => Some(error(404, "NoSuchKey")),
            (Some(wanted), Some(there)) if wanted != there => {
                Some(error(412, "PreconditionFailed"))
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

    fn handle(&mut self, request: &Request) -> Answer {
        let upload = request.query.get("uploadId").cloned();
        match (request.method.as_str(), upload) {
            ("POST", Some(upload)) => self.complete(request, &upload),
            ("POST", None) if request.query.contains_key("uploads") => {
                self.count += 1;
                let id = format!("upload {}", self.count);
                self.uploads.insert(id.clone(), BTreeMap::new());
                ok(format!(
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
                ok(xml + "</DeleteResult>")
            }
            ("PUT", Some(upload)) => {
                let Some(parts) = self.uploads.get_mut(&upload) else {
                    return error(404, "NoSuchUpload");
                };
                let number = request.query["partNumber"].parse().unwrap();
                let e_tag = format!("\"part-{number}\"");
                parts.insert(number, (request.body.clone(), e_tag.clone()));
                (200, format!("etag: {e_tag}\r\n"), String::new())
            }
            ("PUT", None) => self.denied(request).unwrap_or_else(|| {
                let e_tag = self.put(&request.key, request.body.clone());
                (200, format!("etag: {e_tag}\r\n"), String::new())
            }),
            ("GET", Some(upload)) => self.list_parts(request, &upload),
            ("GET" | "HEAD", None) if request.key.is_empty() => self.list(),
            ("GET" | "HEAD", None) => self.get(&request.key),
            ("DELETE", Some(upload)) => match self.uploads.remove(&upload) {
                Some(_) => (204, String::new(), String::new()),
                None => error(404, "NoSuchUpload"),
            },
            ("DELETE", None) => {
                if self.keeps.delete
                    && let Some(denied) = self.denied(request)
                {
                    return denied;
                }
                self.objects.remove(&request.key);
                (204, String::new(), String::new())
            }
            _ => error(501, "NotImplemented"),
        }
    }

    fn get(&self, key: &str) -> Answer {
        let Some((bytes, e_tag)) = self.objects.get(key) else {
            return error(404, "NoSuchKey");
        };
        let date = "last-modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        // Contents of these tests are ASCII.
        (
            200,
            format!("etag: {e_tag}\r\n{date}"),
            String::from_utf8(bytes.clone()).unwrap(),
        )
    }

    fn list(&self) -> Answer {
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
        ok(xml + "</ListBucketResult>")
    }

    /// One part a page.
    fn list_parts(&self, request: &Request, upload: &str) -> Answer {
        let Some(parts) = self.uploads.get(upload) else {
            return error(404, "NoSuchUpload");
        };
        let marker = request
            .query
            .get("part-number-marker")
            .map_or(0, |text| text.parse().unwrap());
        let mut left = parts.range(marker + 1..);
        let mut xml = "<ListPartsResult>".to_owned();
        if let Some((number, (bytes, e_tag))) = left.next() {
            let (more, size, e_tag) = (
                left.next().is_some(),
                bytes.len(),
                e_tag.replace('"', "&quot;"),
            );
            write!(xml, "<IsTruncated>{more}</IsTruncated><NextPartNumberMarker>{number}</NextPartNumberMarker>").unwrap();
            write!(xml, "<Part><PartNumber>{number}</PartNumber><ETag>{e_tag}</ETag><Size>{size}</Size></Part>").unwrap();
        }
        ok(xml + "</ListPartsResult>")
    }

    fn complete(&mut self, request: &Request, upload: &str) -> Answer {
        if !self.uploads.contains_key(upload) {
            return error(404, "NoSuchUpload");
        }
        if self.keeps.complete
            && let Some(denied) = self.denied(request)
        {
            return denied;
        }
        let parts = self.uploads.remove(upload).unwrap();
        let bytes: Vec<Vec<u8>> = parts.into_values().map(|(bytes, _)| bytes).collect();
        let e_tag = self.put(&request.key, bytes.concat());
        ok(format!(
            "<R><Location>l</Location><Bucket>b</Bucket><Key>k</Key><ETag>{e_tag}</ETag></R>"
        ))
    }
}

const A: ConditionSupport = ConditionSupport {
    marker_versions: false,
    ..ConditionSupport::ALL
};

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_changed_only_as_it_is() {
    let (server, store) = serve(A);
    assert_eq!(store.condition_support("c").await.unwrap(), A);
    check_conditions(&store).await;
    check_staged(&store).await;
    let server = server.lock().unwrap();
    assert!(server.uploads.is_empty(), "{:?}", server.uploads.keys());
    assert!(server.objects.is_empty(), "{:?}", server.objects.keys());
    let conditional =
        |request: &&Request| request.method == "DELETE" && request.headers.contains_key("if-match");
    let deletes: Vec<_> = server.seen.iter().filter(conditional).collect();
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
async fn what_a_store_ignores_is_found_out() {
    for (delete, complete) in [(false, false), (true, false), (false, true)] {
        let keeps = ConditionSupport {
            delete,
            complete,
            marker_versions: false,
        };
        let (server, store) = serve(keeps);
        assert_eq!(store.condition_support("folder").await.unwrap(), keeps);
        let asked = server.lock().unwrap().seen.len();
        assert_eq!(store.condition_support("folder").await.unwrap(), keeps);
        let server = server.lock().unwrap();
        assert_eq!(server.seen.len(), asked, "once is enough");
        assert!(server.objects.is_empty() && server.uploads.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_be_sent_once_is_sent_once() {
    let (server, store) = serve(A);
    let once = store.with_send_limit(SendLimit {
        deadline: None,
        once: true,
    });
    for method in ["DELETE", "PUT"] {
        {
            let mut server = server.lock().unwrap();
            server.seen.clear();
            server.fault = Some((method, Fault::ErrorAfter));
        }
        let lost = if method == "PUT" {
            once.put_if("x", "1".into(), &Condition::Always)
                .await
                .map(drop)
        } else {
            once.delete_if("x", &Condition::Always).await.map(drop)
        };
        let lost = lost.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Unavailable);
        assert!(lost.message().contains("500"), "{lost}");
        let seen = server.lock().unwrap().seen.len();
        assert_eq!(seen, 1, "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_after_the_deadline_and_what_is_under_way_is_cut_off() {
    let (server, store) = serve(A);
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
    assert!(server.lock().unwrap().seen.is_empty());
    for fault in [Fault::Silence, Fault::ErrorAfter] {
        server.lock().unwrap().fault = Some(("PUT", fault));
        let soon = store.with_send_limit(after(Duration::from_millis(300)));
        let lost = soon
            .put_if("x", "1".into(), &Condition::Always)
            .await
            .unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Unavailable, "{lost}");
        let seen = server.lock().unwrap().seen.len();
        assert!(seen > 0);
        // The client's retries would go on for five seconds.
        store.clock().sleep(Duration::from_millis(500)).await;
        assert_eq!(server.lock().unwrap().seen.len(), seen, "{fault:?}");
        assert!(soon.is_file("x").await.is_err());
    }
}
