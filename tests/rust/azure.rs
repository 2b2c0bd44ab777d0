//! Copies under a condition on the wire: a few scripted answers of Azure, with the client's own retries in the path.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use pds::ErrorKind;
use pds::store::stage::StagedWrite;
use pds::store::{Condition, Store, StoreBuilder};

/// A status line, and headers.
type Answer = (&'static str, &'static [&'static str]);

const EXISTS: Answer = ("409 Conflict", &["x-ms-error-code: BlobAlreadyExists"]);
const BUSY: Answer = ("409 Conflict", &["x-ms-error-code: PendingCopyOperation"]);
const BEGUN: Answer = (
    "202 Accepted",
    &["x-ms-copy-id: 1", "x-ms-copy-status: pending"],
);
const GOES_ON: Answer = ("200 OK", &["x-ms-copy-id: 1", "x-ms-copy-status: pending"]);
const COPIED: Answer = ("200 OK", &["x-ms-copy-id: 1", "x-ms-copy-status: success"]);
const REPLACED: Answer = ("200 OK", &["x-ms-copy-id: 2", "x-ms-copy-status: success"]);
const DELETED: Answer = (
    "202 Accepted",
    &["content-type: multipart/mixed; boundary=batch"],
);
/// The answer's body to a batch of one deletion.
const BATCH: &str = "--batch\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n\
    HTTP/1.1 202 Accepted\r\nx-ms-request-id: 1\r\n\r\n\r\n--batch--\r\n";

#[derive(Debug, Default)]
struct Script {
    answers: VecDeque<Answer>,
    seen: Vec<String>,
}

/// A store whose requests are answered by the script, one after the other.
fn scripted(answers: &[Answer]) -> (Arc<Mutex<Script>>, Store) {
    let script = Arc::new(Mutex::new(Script {
        answers: answers.iter().copied().collect(),
        seen: Vec::new(),
    }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/account", listener.local_addr().unwrap());
    let shared = Arc::clone(&script);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || answer_all(stream, &shared));
        }
    });
    let options = BTreeMap::from([
        ("azure_storage_account_name", "account"),
        ("azure_storage_endpoint", &endpoint),
        ("azure_skip_signature", "true"),
        ("allow_http", "true"),
    ]);
    let options = options.iter().map(|(k, v)| ((*k).into(), (*v).into()));
    let builder = StoreBuilder::parse("az://box", &options.collect()).unwrap();
    (script, builder.build().unwrap())
}

fn answer_all(stream: TcpStream, script: &Mutex<Script>) {
    let mut out = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(Ok(first)) = reader.by_ref().lines().next() {
        let headers = reader.by_ref().lines().map_while(Result::ok);
        let headers: Vec<String> = headers.take_while(|line| !line.is_empty()).collect();
        let length = headers
            .iter()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |text| text.parse().unwrap())];
        reader.read_exact(&mut body).unwrap();
        let condition = headers.iter().find(|line| line.starts_with("if-"));
        let condition = condition.map_or(String::new(), |line| format!(" {line}"));
        let mut words = first.split([' ', '?']);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let name = path.rsplit('/').next().unwrap();
        let mut script = script.lock().unwrap();
        script.seen.push(format!("{method} {name}{condition}"));
        let unknown = ("400 Bad Request", [].as_slice());
        let (status, headers) = script.answers.pop_front().unwrap_or(unknown);
        let headers: String = headers.iter().flat_map(|line| [line, "\r\n"]).collect();
        let body = if method == "POST" { BATCH } else { "" };
        let length = body.len();
        let _ = write!(
            out,
            "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
    }
}

/// What publishing a hidden blob as `x` leads to, and the requests it took.
async fn publish(
    answers: &[Answer],
    condition: &Condition,
) -> (Result<(), pds::Error>, Vec<String>) {
    let (script, store) = scripted(answers);
    let staged = StagedWrite::Object {
        path: "hidden".to_owned(),
    };
    let published = staged.publish_if(&store, "x", condition).await;
    let seen = std::mem::take(&mut script.lock().unwrap().seen);
    (published.map(drop), seen)
}

#[tokio::test]
async fn a_blob_in_the_way_is_an_answer_and_not_asked_about_again() {
    let (published, seen) = publish(&[EXISTS], &Condition::Absent).await;
    assert_eq!(published.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(seen, ["PUT x if-none-match: *"]);
}

#[tokio::test]
async fn a_copy_is_waited_for() {
    let matches = Condition::Matches("0x1".to_owned());
    let answers = [BUSY, BEGUN, GOES_ON, COPIED, DELETED];
    let (published, seen) = publish(&answers, &matches).await;
    published.unwrap();
    let put = "PUT x if-match: \"0x1\"";
    assert_eq!(seen, [put, put, "HEAD x", "HEAD x", "POST box"]);
    // Another write's copy is not this one's.
    let (published, seen) = publish(&[BEGUN, REPLACED], &matches).await;
    assert_eq!(published.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(seen, [put, "HEAD x"]);
}
