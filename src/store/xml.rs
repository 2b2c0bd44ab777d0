//! The XML responses of S3 that list objects, upload parts and uploads, and those to copies. The XML API of GCS has the
//! same.

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use object_store::path::Path;
use serde::Deserialize;

use super::condition::{KeyListing, OpenUpload, UploadedPart};
use super::path;

/// One page of a listing.
#[derive(Debug, PartialEq)]
pub(super) struct ListPage<T, M> {
    pub(super) items: Vec<T>,
    /// The marker of the next page; None on the last one.
    pub(super) next: Option<M>,
}

/// The documents, by the name of their root element.
#[derive(Deserialize)]
enum Document {
    ListBucketResult(ObjectList),
    ListPartsResult(PartList),
    ListMultipartUploadsResult(UploadList),
    CopyPartResult(CopiedPart),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ObjectList {
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    next_continuation_token: Option<String>,
    #[serde(default)]
    contents: Vec<ObjectEntry>,
    #[serde(default)]
    common_prefixes: Vec<FolderEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ObjectEntry {
    key: String,
    size: u64,
    last_modified: DateTime<Utc>,
    #[serde(rename = "ETag")]
    e_tag: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FolderEntry {
    prefix: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PartList {
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    next_part_number_marker: String,
    #[serde(default, rename = "Part")]
    parts: Vec<Part>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Part {
    #[serde(rename = "ETag")]
    e_tag: String,
    size: u64,
}

#[derive(Deserialize)]
struct CopiedPart {
    #[serde(rename = "ETag")]
    e_tag: String,
    #[serde(default, rename = "ChecksumSHA256")]
    checksum_sha256: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadList {
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    next_key_marker: String,
    #[serde(default)]
    next_upload_id_marker: String,
    #[serde(default, rename = "Upload")]
    uploads: Vec<UploadEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadEntry {
    key: String,
    upload_id: String,
    initiated: DateTime<Utc>,
}

fn parse(xml: &[u8]) -> Result<Document, String> {
    let text = std::str::from_utf8(xml).map_err(|e| format!("the response is not UTF-8: {e}"))?;
    quick_xml::de::from_str(text)
        .map_err(|e| format!("the response cannot be parsed: {e}; it begins with {text:.200}"))
}

/// Whether this answers a copy that was carried out. Any other document, such as an error, may follow a status of 200.
pub(super) fn is_copy_result(xml: &[u8]) -> bool {
    let text = String::from_utf8_lossy(xml);
    let document = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    let body = match document.strip_prefix("<?") {
        Some(declaration) => declaration.split_once("?>").map_or("", |(_, rest)| rest),
        None => document,
    };
    let Some(root) = body.trim_start().strip_prefix('<') else {
        return false;
    };
    let end = root.find(|c: char| c.is_whitespace() || c == '>' || c == '/');
    let name = &root[..end.unwrap_or(root.len())];
    let local_name = name.rsplit(':').next().unwrap_or_default();
    matches!(local_name, "CopyObjectResult" | "CopyPartResult")
}

/// The id of the part in a `CopyPartResult`, as `object_store` has it: the ETag, or a document of its own with a checksum.
pub(super) fn parse_copied_part(xml: &[u8]) -> Result<String, String> {
    let Document::CopyPartResult(part) = parse(xml)? else {
        return Err("the response is not a CopyPartResult".to_owned());
    };
    Ok(match part.checksum_sha256 {
        Some(checksum) => format!(
            "<PartMetadata><e_tag>{}</e_tag><checksum_sha256>{checksum}</checksum_sha256></PartMetadata>",
            quick_xml::escape::escape(&part.e_tag)
        ),
        None => part.e_tag,
    })
}

/// Parses a `ListBucketResult`; returns the page and the token of the next one.
pub(super) fn parse_objects_page(xml: &[u8]) -> Result<(KeyListing, Option<String>), String> {
    let Document::ListBucketResult(list) = parse(xml)? else {
        return Err("the response is not a ListBucketResult".to_owned());
    };
    let mut page = KeyListing::default();
    for folder in list.common_prefixes {
        let name = folder.prefix.strip_suffix('/').unwrap_or(&folder.prefix);
        match path::parse(name) {
            Ok(key) => page.listing.common_prefixes.push(key),
            Err(_) => page.unnamed.push(folder.prefix),
        }
    }
    for object in list.contents {
        let folder_name = object.key.strip_suffix('/');
        let is_folder = folder_name.is_some();
        match path::parse(folder_name.unwrap_or(&object.key)) {
            Err(_) => page.unnamed.push(object.key),
            Ok(_) if is_folder && object.size > 0 => page.unnamed.push(object.key),
            Ok(folder) if is_folder => page.folder_objects.push(folder),
            Ok(location) => page.listing.objects.push(ObjectMeta {
                location,
                last_modified: object.last_modified,
                size: object.size,
                e_tag: object.e_tag,
                version: None,
            }),
        }
    }
    let next = list.next_continuation_token;
    let next = next.filter(|token| !token.is_empty());
    check_marker(list.is_truncated, next.as_deref().unwrap_or_default()).map_err(|e| {
        format!("{e}; the server has to support version 2 of ListObjects (list-type=2)")
    })?;
    Ok((page, next))
}

/// Fails on a page that is not the last one and names no next one: what was listed so far would seem to be all.
fn check_marker(is_truncated: bool, marker: &str) -> Result<(), String> {
    if is_truncated && marker.is_empty() {
        let text = "the response says that it is not the last page, and does not name the next one";
        return Err(text.to_owned());
    }
    Ok(())
}

/// Parses a `ListPartsResult`; the marker is a part number.
pub(super) fn parse_parts_page(xml: &[u8]) -> Result<ListPage<UploadedPart, String>, String> {
    let Document::ListPartsResult(list) = parse(xml)? else {
        return Err("the response is not a ListPartsResult".to_owned());
    };
    let to_uploaded_part = |part: Part| UploadedPart {
        e_tag: part.e_tag,
        bytes: part.size,
    };
    check_marker(list.is_truncated, &list.next_part_number_marker)?;
    Ok(ListPage {
        items: list.parts.into_iter().map(to_uploaded_part).collect(),
        next: list.is_truncated.then_some(list.next_part_number_marker),
    })
}

/// Parses a `ListMultipartUploadsResult`; the marker is a key and an upload id.
pub(super) fn parse_uploads_page(
    xml: &[u8],
) -> Result<ListPage<OpenUpload, (String, String)>, String> {
    let Document::ListMultipartUploadsResult(list) = parse(xml)? else {
        return Err("the response is not a ListMultipartUploadsResult".to_owned());
    };
    let to_open_upload = |upload: UploadEntry| {
        // Not a valid path, so it cannot be in a dataset's folder.
        let path = Path::parse(&upload.key).ok()?;
        Some(OpenUpload {
            path,
            id: upload.upload_id,
            initiated_at: upload.initiated,
        })
    };
    check_marker(list.is_truncated, &list.next_key_marker)?;
    Ok(ListPage {
        items: list
            .uploads
            .into_iter()
            .filter_map(to_open_upload)
            .collect(),
        next: list
            .is_truncated
            .then_some((list.next_key_marker, list.next_upload_id_marker)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_answered_by_its_result_alone() {
        for (body, is_result) in [
            ("<CopyObjectResult><ETag>x</ETag></CopyObjectResult>", true),
            (
                " \n<?xml version='1.0'?>\n<CopyObjectResult xmlns=\"x\"/>",
                true,
            ),
            ("\u{feff}<s3:CopyObjectResult xmlns:s3=\"x\">", true),
            ("<CopyPartResult>", true),
            (
                "<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>",
                false,
            ),
            ("<Error>CopyObjectResult</Error>", false),
            ("<CopyObjectResults>", false),
            ("<?xml", false),
            ("", false),
        ] {
            assert_eq!(is_copy_result(body.as_bytes()), is_result, "{body}");
        }
    }

    #[test]
    fn the_id_of_a_copied_part_has_its_checksum() {
        let parse = |inner: &str| {
            let xml = format!("<CopyPartResult xmlns=\"x\">{inner}</CopyPartResult>");
            parse_copied_part(xml.as_bytes()).unwrap()
        };
        assert_eq!(parse("<ETag>&quot;a&quot;</ETag>"), "\"a\"");
        assert_eq!(
            parse("<ETag>&quot;a&quot;</ETag><ChecksumSHA256>b=</ChecksumSHA256>"),
            "<PartMetadata><e_tag>&quot;a&quot;</e_tag><checksum_sha256>b=</checksum_sha256></PartMetadata>"
        );
        assert!(parse_copied_part(b"<Error/>").is_err());
    }

    #[test]
    fn reads_lists_of_objects_and_keeps_keys_that_are_no_paths_apart() {
        let object = |key: &str, size: u64| {
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-11-22T10:00:00.000Z</LastModified>\
                 <ETag>&quot;a&quot;</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            )
        };
        let xml = format!(
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><IsTruncated>true</IsTruncated>\
             <NextContinuationToken>t &amp;</NextContinuationToken>{}{}{}{}\
             <CommonPrefixes><Prefix>a/b/</Prefix></CommonPrefixes>{}\
             <CommonPrefixes><Prefix>a//</Prefix></CommonPrefixes></ListBucketResult>",
            object("a/&lt;é&gt; &amp;", 5),
            object("a/", 0),
            object("a/full/", 5),
            object("a//b", 5),
            object("a/../c", 5),
        );
        let (page, next) = parse_objects_page(xml.as_bytes()).unwrap();
        let objects = &page.listing.objects;
        assert_eq!(objects.len(), 1);
        assert_eq!(objects[0].location.as_ref(), "a/<é> &");
        assert_eq!(objects[0].size, 5);
        assert_eq!(objects[0].e_tag.as_deref(), Some("\"a\""));
        assert_eq!(page.listing.common_prefixes, [Path::from("a/b")]);
        assert_eq!(page.folder_objects, [Path::from("a")]);
        assert_eq!(page.unnamed, ["a//", "a/full/", "a//b", "a/../c"]);
        assert_eq!(next.as_deref(), Some("t &"));
        let (empty, next) = parse_objects_page(b"<ListBucketResult></ListBucketResult>").unwrap();
        assert!(empty.listing.objects.is_empty() && next.is_none());
        assert!(parse_objects_page(b"<Error/>").is_err());
    }

    #[test]
    fn a_page_that_is_not_the_last_one_names_the_next() {
        // As version 1 of the listing, which servers give that do not know version 2.
        let truncated = "<IsTruncated>true</IsTruncated><Marker/><NextMarker>a</NextMarker>";
        let objects = |inner: &str| {
            let xml = format!("<ListBucketResult xmlns=\"x\">{inner}</ListBucketResult>");
            parse_objects_page(xml.as_bytes()).map(|(_, next)| next)
        };
        for token in ["", "<NextContinuationToken/>"] {
            let error = objects(&format!("{truncated}{token}")).unwrap_err();
            assert!(error.contains("list-type=2"), "{error}");
        }
        assert_eq!(objects("<IsTruncated>false</IsTruncated>"), Ok(None));
        let next = "<NextContinuationToken>t</NextContinuationToken>";
        assert_eq!(
            objects(&format!("{truncated}{next}")),
            Ok(Some("t".to_owned()))
        );
        let parts = format!("<ListPartsResult>{truncated}</ListPartsResult>");
        assert!(parse_parts_page(parts.as_bytes()).is_err());
        let uploads =
            format!("<ListMultipartUploadsResult>{truncated}</ListMultipartUploadsResult>");
        assert!(parse_uploads_page(uploads.as_bytes()).is_err());
    }

    #[test]
    fn reads_lists_of_parts() {
        let xml = "<?xml version=\"1.0\"?><ListPartsResult xmlns=\"x\"><UploadId>u</UploadId>\
            <NextPartNumberMarker>2</NextPartNumberMarker><IsTruncated>true</IsTruncated>\
            <Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag><Size>5</Size></Part>\
            <Owner><ID>o</ID></Owner>\
            <Part><PartNumber>2</PartNumber><ETag>\"b\"</ETag><Size>6</Size></Part></ListPartsResult>";
        let page = parse_parts_page(xml.as_bytes()).unwrap();
        let parts: Vec<_> = page
            .items
            .iter()
            .map(|p| (p.e_tag.as_str(), p.bytes))
            .collect();
        assert_eq!(parts, [("\"a\"", 5), ("\"b\"", 6)]);
        assert_eq!(page.next.as_deref(), Some("2"));
        for other in [
            "<Error/>",
            "",
            "<ListPartsResult>",
            "<ListPartsResult><Part/></ListPartsResult>",
        ] {
            assert!(parse_parts_page(other.as_bytes()).is_err(), "{other}");
        }
        let empty = parse_parts_page(b"<ListPartsResult></ListPartsResult>").unwrap();
        assert!(empty.items.is_empty() && empty.next.is_none());
    }

    #[test]
    fn reads_lists_of_uploads() {
        let xml = "<ListMultipartUploadsResult xmlns=\"x\"><Bucket>b</Bucket><KeyMarker/><UploadIdMarker/>\
            <NextKeyMarker>a/&lt;é&gt; &amp;</NextKeyMarker><NextUploadIdMarker>u 2</NextUploadIdMarker>\
            <MaxUploads>1</MaxUploads><IsTruncated>true</IsTruncated>\
            <Upload><Key>a/&lt;é&gt; &amp;</Key><UploadId>u 2</UploadId><Initiator><ID>i</ID></Initiator>\
            <StorageClass>STANDARD</StorageClass><Initiated>2026-11-22T10:00:00.000Z</Initiated></Upload>\
            <Upload><Key>a//b</Key><UploadId>u</UploadId><Initiated>2026-11-22T10:00:00Z</Initiated></Upload>\
            <CommonPrefixes><Prefix>a/b/</Prefix></CommonPrefixes></ListMultipartUploadsResult>";
        let page = parse_uploads_page(xml.as_bytes()).unwrap();
        let expected = OpenUpload {
            path: Path::parse("a/<é> &").unwrap(),
            id: "u 2".to_owned(),
            initiated_at: "2026-11-22T10:00:00Z".parse().unwrap(),
        };
        assert_eq!(page.items, [expected]);
        assert_eq!(page.next, Some(("a/<é> &".to_owned(), "u 2".to_owned())));
        assert!(parse_uploads_page(b"<ListPartsResult></ListPartsResult>").is_err());
    }
}
