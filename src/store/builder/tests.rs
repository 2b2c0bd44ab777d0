use super::*;

fn parse(url: &str) -> Result<StoreBuilder> {
    StoreBuilder::parse(url, &BTreeMap::new())
}

#[test]
fn refuses_what_is_no_store() {
    for bad in [
        "",
        "x",
        "ftp://h/p",
        "file://relative",
        "s3://",
        "s3://key:secret@bucket/p",
        "s3://b/a//c",
        "az:///x",
        "az://c/path?sv=1&sig=x",
        "s3://b?x=1",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    let options = BTreeMap::from([("aws_regoin".to_owned(), "x".to_owned())]);
    let error = StoreBuilder::parse("s3://b", &options).unwrap_err();
    assert!(error.message().contains("aws_regoin"), "{error}");
}

#[test]
fn durability_is_for_local_files() {
    let open = |url: &str, value: &str| {
        let options = BTreeMap::from([("durability".to_owned(), value.to_owned())]);
        StoreBuilder::parse(url, &options)
    };
    assert!(parse("file:///tmp").unwrap().durable);
    assert!(open("file:///tmp", "full").unwrap().durable);
    assert!(!open("file:///tmp", "none").unwrap().durable);
    for (url, value) in [
        ("file:///tmp", "some"),
        ("memory://", "none"),
        ("s3://b", "none"),
    ] {
        let error = open(url, value).unwrap_err();
        assert!(error.message().contains("durability"), "{error}");
    }
}

#[test]
fn a_profile_is_for_s3() {
    let options = BTreeMap::from([("AWS_PROFILE".to_owned(), "dev".to_owned())]);
    assert!(StoreBuilder::parse("s3://b", &options).is_ok());
    for url in ["memory://", "file:///tmp", "az://c", "gs://b"] {
        let error = StoreBuilder::parse(url, &options).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidInput, "{url}");
        assert!(error.message().contains("aws_profile"), "{error}");
    }
}

#[test]
fn file_urls_decode_once() {
    assert_eq!(parse("file:///tmp/a%20b").unwrap().container, "/tmp/a b");
    assert_eq!(
        parse("file:///tmp/a%2520b").unwrap().container,
        "/tmp/a%20b"
    );
    assert_eq!(parse("file:///tmp/a b%").unwrap().container, "/tmp/a b%");
}
