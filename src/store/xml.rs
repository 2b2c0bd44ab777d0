//! The XML responses of S3 that list upload parts and uploads. The XML API of GCS has the same.

use chrono::{DateTime, Utc};
use object_store::path::Path;
use serde::Deserialize;

use super::condition::{OpenUpload, UploadedPart};

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
    ListPartsResult(PartList),
    ListMultipartUploadsResult(UploadList),
    #[serde(other)]
    Other,
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

/// Parses a `ListPartsResult`; the marker is a part number.
pub(super) fn parse_parts_page(xml: &[u8]) -> Result<ListPage<UploadedPart, String>, String> {
    let Document::ListPartsResult(list) = parse(xml)? else {
        return Err("the response is not a ListPartsResult".to_owned());
    };
    let to_uploaded_part = |part: Part| UploadedPart {
        e_tag: part.e_tag,
        bytes: part.size,
    };
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
