//! Copies under a condition on the wire: a few scripted answers of Azure, with the client's own retries in the path.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use pds::ErrorKind;
use pds::store::cas::{CasResult, Register};
use pds::store::staged_write::StagedWrite;
use pds::store::{Condition, Store, StoreBuilder};

/// A status line, and headers.
type ScriptedResponse = (&'static str, &'static [&'static str]);

const BLOB_EXISTS: ScriptedResponse = ("409 Conflict", &["x-ms-error-code: BlobAlreadyExists"]);
const CONDITION_NOT_MET: ScriptedResponse = (
    "412 Precondition Failed",
    &["x-ms-error-code: ConditionNotMet"],
);
const SERVER_ERROR: ScriptedResponse = ("500 Internal Server Error", &[]);
const FORBIDDEN: ScriptedResponse = ("403 Forbidden", &[]);
const NOT_FOUND: ScriptedResponse = ("404 Not Found", &["x-ms-error-code: BlobNotFound"]);
const EMPTY_BLOB: ScriptedResponse = (
    "200 OK",
    &[
        "etag: \"0x1\"",
        "last-modified: Mon, 23 Nov 2026 08:00:00 GMT",
    ],
);
const PENDING_COPY_CONFLICT: ScriptedResponse =
    ("409 Conflict", &["x-ms-error-code: PendingCopyOperation"]);
const COPY_ACCEPTED: ScriptedResponse = (
    "202 Accepted",
    &["x-ms-copy-id: 1", "x-ms-copy-status: pending"],
);
const COPY_PENDING: ScriptedResponse =
    ("200 OK", &["x-ms-copy-id: 1", "x-ms-copy-status: pending"]);
const COPY_SUCCEEDED: ScriptedResponse =
    ("200 OK", &["x-ms-copy-id: 1", "x-ms-copy-status: success"]);
const OTHER_COPY_SUCCEEDED: ScriptedResponse =
    ("200 OK", &["x-ms-copy-id: 2", "x-ms-copy-status: success"]);
const BATCH_ACCEPTED: ScriptedResponse = (
    "202 Accepted",
    &["content-type: multipart/mixed; boundary=batch"],
);
/// The answer's body to a batch of one deletion.
const BATCH_RESPONSE_BODY: &str = "--batch\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n\
    HTTP/1.1 202 Accepted\r\nx-ms-request-id: 1\r\n\r\n\r\n--batch--\r\n";

#[derive(Debug, Default)]
struct Script {
    responses: VecDeque<ScriptedResponse>,
    requests: Vec<String>,
}

/// A store whose requests are answered by the script, one after the other.
fn scripted_store(responses: &[ScriptedResponse]) -> (Arc<Mutex<Script>>, Store) {
    let script = Arc::new(Mutex::new(Script {
        responses: responses.iter().copied().collect(),
        requests: Vec::new(),
    }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/account", listener.local_addr().unwrap());
    let shared = Arc::clone(&script);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || serve_connection(stream, &shared));
        }
    });
    let options = BTreeMap::from([
        ("azure_storage_account_name", "account"),
        ("azure_storage_endpoint", &endpoint),
        ("azure_skip_signature", "On"),
        ("allow_http", "true"),
    ]);
    let option_strings = options.iter().map(|(k, v)| ((*k).into(), (*v).into()));
    let builder = StoreBuilder::parse("az://box", &option_strings.collect()).unwrap();
    (script, builder.build().unwrap())
}

fn serve_connection(stream: TcpStream, script: &Mutex<Script>) {
    let mut out = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(Ok(first)) = reader.by_ref().lines().next() {
        let lines = reader.by_ref().lines().map_while(Result::ok);
        let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let length = headers
            .iter()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |text| text.parse().unwrap())];
        reader.read_exact(&mut body).unwrap();
        let condition = headers.iter().find(|line| line.starts_with("if-"));
        let condition_text = condition.map_or(String::new(), |line| format!(" {line}"));
        let mut words = first.split([' ', '?']);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let name = path.rsplit('/').next().unwrap();
        let mut script = script.lock().unwrap();
        script
            .requests
            .push(format!("{method} {name}{condition_text}"));
        let unknown = ("400 Bad Request", [].as_slice());
        let (status, header_lines) = script.responses.pop_front().unwrap_or(unknown);
        let response_headers: String = header_lines
            .iter()
            .flat_map(|line| [line, "\r\n"])
            .collect();
        let response_body = if method == "POST" {
            BATCH_RESPONSE_BODY
        } else {
            ""
        };
        let response_length = response_body.len();
        let _ = write!(
            out,
            "HTTP/1.1 {status}\r\n{response_headers}content-length: {response_length}\r\n\r\n{response_body}"
        );
    }
}

/// What publishing a hidden blob as `x` leads to, and the requests it took.
async fn publish(
    responses: &[ScriptedResponse],
    condition: &Condition,
) -> (Result<(), pds::Error>, Vec<String>) {
    let (script, store) = scripted_store(responses);
    let staged = StagedWrite::Object {
        path: "hidden".to_owned(),
    };
    let published = staged.publish_if(&store, "x", condition).await;
    let requests = std::mem::take(&mut script.lock().unwrap().requests);
    (published.map(drop), requests)
}

#[tokio::test]
async fn an_existing_blob_is_a_conflict_without_retries() {
    let (published, requests) = publish(&[BLOB_EXISTS], &Condition::Absent).await;
    assert_eq!(published.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(requests, ["PUT x if-none-match: *"]);
}

#[tokio::test]
async fn a_conditional_write_is_sent_once_before_it_is_read_back() {
    let (script, store) = scripted_store(&[SERVER_ERROR, FORBIDDEN]);
    let created = Register::new(&store, "x").create("new".into()).await;
    assert_eq!(created.unwrap_err().kind(), ErrorKind::Unavailable);
    let requests = std::mem::take(&mut script.lock().unwrap().requests);
    assert_eq!(requests, ["PUT x if-none-match: *", "GET x"]);
}

#[tokio::test]
async fn a_blob_that_exists_after_a_lost_answer_is_this_writers_own() {
    // The scripted blob is empty.
    let script = [SERVER_ERROR, NOT_FOUND, BLOB_EXISTS, EMPTY_BLOB];
    let (script, store) = scripted_store(&script);
    let created = Register::new(&store, "x").create("".into()).await;
    assert!(matches!(created.unwrap(), CasResult::Won(_)));
    let put = "PUT x if-none-match: *";
    let requests = std::mem::take(&mut script.lock().unwrap().requests);
    assert_eq!(requests, [put, "GET x", put, "GET x"]);
}

#[tokio::test]
async fn a_denial_is_definite_only_if_no_answer_was_lost_before() {
    let before = [EMPTY_BLOB];
    for (responses, kind, puts) in [
        (
            [FORBIDDEN, EMPTY_BLOB].as_slice(),
            ErrorKind::PermissionDenied,
            1,
        ),
        (&[FORBIDDEN, FORBIDDEN], ErrorKind::PermissionDenied, 1),
        (
            &[SERVER_ERROR, EMPTY_BLOB, FORBIDDEN, EMPTY_BLOB],
            ErrorKind::Unavailable,
            2,
        ),
        // The condition does not hold, and the blob is the old one all the same: it is tried again.
        (
            &[CONDITION_NOT_MET, EMPTY_BLOB, FORBIDDEN, EMPTY_BLOB],
            ErrorKind::Unavailable,
            2,
        ),
    ] {
        let (script, store) = scripted_store(&[before.as_slice(), responses].concat());
        let register = Register::new(&store, "x");
        let old = register.read().await.unwrap().unwrap();
        let error = register.replace(&old, "new".into()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{responses:?}");
        let script = script.lock().unwrap();
        let put = "PUT x if-match: \"0x1\"";
        let sent = script.requests.iter().filter(|request| *request == put);
        assert_eq!(sent.count(), puts, "{:?}", script.requests);
    }
}

#[tokio::test]
async fn a_pending_copy_is_awaited() {
    let matches = Condition::Matches("0x1".to_owned());
    let responses = [
        PENDING_COPY_CONFLICT,
        COPY_ACCEPTED,
        COPY_PENDING,
        COPY_SUCCEEDED,
        BATCH_ACCEPTED,
    ];
    let (published, requests) = publish(&responses, &matches).await;
    published.unwrap();
    let put = "PUT x if-match: \"0x1\"";
    assert_eq!(requests, [put, put, "HEAD x", "HEAD x", "POST box"]);
    // Another write's copy is not this one's.
    let (published, requests) = publish(&[COPY_ACCEPTED, OTHER_COPY_SUCCEEDED], &matches).await;
    assert_eq!(published.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(requests, [put, "HEAD x"]);
}
