//! Every kind of store keeps the contract.

use std::collections::BTreeMap;

use object_store::GetOptions;
use pds::store::StoreBuilder;
use pds::testing::{check_store, faulty_memory, store_over};

fn open(url: &str) -> pds::store::Store {
    StoreBuilder::parse(url, &BTreeMap::new())
        .unwrap()
        .build()
        .unwrap()
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    check_store(&open("memory://contract/with/prefix"))
        .await
        .unwrap();
    check_store(&store_over(&faulty_memory(), true))
        .await
        .unwrap();
}

#[tokio::test]
async fn local_files_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/not yet there", folder.path().display());
    check_store(&open(&url)).await.unwrap();
}

#[tokio::test]
async fn local_files_stay_below_their_root() {
    let folder = tempfile::tempdir().unwrap();
    let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
    std::fs::create_dir_all(&root).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("secret"), "s").unwrap();
    std::os::unix::fs::symlink(&outside, root.join("out")).unwrap();
    std::os::unix::fs::symlink(outside.join("new"), root.join("dangling")).unwrap();
    std::fs::create_dir(root.join("real")).unwrap();
    std::fs::write(root.join("real/file"), "f").unwrap();
    std::os::unix::fs::symlink(root.join("real"), root.join("in")).unwrap();
    let store = open(&format!("file://{}", root.display()));
    for path in ["out/secret", "out/new", "dangling"] {
        let kind = pds::ErrorKind::InvalidPath;
        assert_eq!(
            store
                .get(path, GetOptions::default())
                .await
                .unwrap_err()
                .kind(),
            kind,
            "{path}"
        );
        let put = store
            .put(path, "x".into(), object_store::PutMode::Overwrite)
            .await;
        assert_eq!(put.unwrap_err().kind(), kind, "{path}");
        assert_eq!(store.delete(path).await.unwrap_err().kind(), kind, "{path}");
    }
    assert!(store.get("in/file", GetOptions::default()).await.is_ok());
    let listed = store.list("").await.unwrap();
    let names: Vec<&str> = listed.iter().map(|m| m.location.as_ref()).collect();
    assert_eq!(names, ["in/file", "real/file"]);
    assert!(!outside.join("new").exists());
}
