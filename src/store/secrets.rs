//! Masks credentials in messages, logs and representations.
//!
//! [`Secrets`] masks the values of a store's secret options wherever they occur in a text. [`mask_urls`] needs no
//! options: it masks the user names and passwords of URLs, the signatures and tokens of their queries, and what S3
//! repeats of a signed request.

use std::collections::BTreeMap;
use std::fmt;

/// What replaces a secret.
const MASK: &str = "***";
/// An option is secret if its name contains one of these.
const SECRET_NAMES: [&str; 8] = [
    "secret",
    "key",
    "token",
    "password",
    "sas",
    "credential",
    "signature",
    "authorization",
];
/// The names of query parameters, and of `name=value` pairs, whose values are secrets.
const SECRET_PARAMETERS: [&str; 12] = [
    "sig",
    "signature",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
    "x-goog-signature",
    "x-goog-credential",
    "token",
    "access_token",
    "password",
    "secret",
    "sas",
];
/// The elements of an answer of S3 that repeat what was signed: headers, and so the session token, as text and bytes.
const SIGNED_ELEMENTS: [&str; 4] = [
    "CanonicalRequest",
    "CanonicalRequestBytes",
    "StringToSign",
    "StringToSignBytes",
];
/// The header with the session token, which such an answer has in a line of its own.
const TOKEN_HEADER: &str = "x-amz-security-token:";
/// The shortest value that is masked: a shorter one would mask ordinary words of messages.
const MIN_SECRET_BYTES: usize = 4;

/// The secret values among the options of a store.
#[derive(Clone, Default)]
pub struct Secrets {
    values: Vec<String>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// Collects the values of secret options, and of all others the user name and password before an `@`.
    pub fn from_options(options: &BTreeMap<String, String>) -> Self {
        let mut values: Vec<String> = Vec::new();
        for (name, value) in options {
            if is_secret(name) {
                values.push(value.clone());
            } else if let Some((before, _)) = value.rsplit_once('@') {
                let userinfo = before.rsplit_once("://").map_or(before, |(_, rest)| rest);
                let password = userinfo.split_once(':').map(|(_, password)| password);
                values.push(userinfo.to_owned());
                values.extend(password.map(ToOwned::to_owned));
            }
        }
        values.retain(|value| value.len() >= MIN_SECRET_BYTES);
        // The longest first: one secret may contain another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self { values }
    }

    /// Returns `text` with these secrets and those of URLs masked.
    pub fn mask(&self, text: &str) -> String {
        let masked = (self.values.iter()).fold(text.to_owned(), |text, secret| {
            text.replace(secret.as_str(), MASK)
        });
        mask_urls(&masked)
    }
}

/// Whether the option `name` is secret.
fn is_secret(name: &str) -> bool {
    let lowercase = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|piece| lowercase.contains(piece))
}

/// The value of an option, masked so that it can be shown.
pub fn mask_option(name: &str, value: &str) -> String {
    if is_secret(name) {
        return MASK.to_owned();
    }
    match value.rsplit_once('@') {
        // The address of a proxy without a scheme.
        Some((_, host)) if !value.contains("://") => format!("{MASK}@{host}"),
        _ => mask_urls(value),
    }
}

/// Replaces the user names and passwords of URLs, and the signatures and tokens of queries, with `***`.
pub fn mask_urls(text: &str) -> String {
    mask_parameters(&mask_tokens(&mask_signed(&mask_userinfo(text))))
}

/// Masks what S3 repeats of a request whose signature it does not accept.
fn mask_signed(text: &str) -> String {
    let masked = SIGNED_ELEMENTS
        .iter()
        .fold(text.to_owned(), |text, name| mask_element(&text, name));
    mask_token_headers(&masked)
}

/// Masks the content of the elements `name`; one without an end to the end of the text.
fn mask_element(text: &str, name: &str) -> String {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(&open) {
        let (before, content) = rest.split_at(start + open.len());
        masked.push_str(before);
        masked.push_str(MASK);
        rest = &content[content.find(&close).unwrap_or(content.len())..];
    }
    masked.push_str(rest);
    masked
}

/// Masks the values of headers with session tokens, up to the end of the line or of an element.
fn mask_token_headers(text: &str) -> String {
    // The same length: only ASCII letters change.
    let lowercase = text.to_ascii_lowercase();
    let mut masked = String::with_capacity(text.len());
    let mut position = 0;
    while let Some(start) = lowercase[position..].find(TOKEN_HEADER) {
        let value_start = position + start + TOKEN_HEADER.len();
        let value = &text[value_start..];
        let end = value.find(['\n', '\r', '<', '\\']).unwrap_or(value.len());
        masked.push_str(&text[position..value_start]);
        if end > 0 {
            masked.push_str(MASK);
        }
        position = value_start + end;
    }
    masked.push_str(&text[position..]);
    masked
}

/// Masks the session token that S3 repeats in its answer about an invalid one: `<Token-0>…</Token-0>`.
fn mask_tokens(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("<Token-") {
        let Some(open) = rest[start..].find('>') else {
            break;
        };
        let (before, after) = rest.split_at(start + open + 1);
        masked.push_str(before);
        masked.push_str(MASK);
        rest = &after[after.find('<').unwrap_or(after.len())..];
    }
    masked.push_str(rest);
    masked
}

fn mask_userinfo(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        masked.push_str(before);
        let is_end = |c: char| c.is_whitespace() || "/?#\"'`<>(){}|\\,;".contains(c);
        let authority = &after[..after.find(is_end).unwrap_or(after.len())];
        rest = match authority.rfind('@') {
            Some(end) => {
                masked.push_str(MASK);
                &after[end..]
            }
            None => after,
        };
    }
    masked.push_str(rest);
    masked
}

fn mask_parameters(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('=') {
        let (name, value) = (&rest[..at], &rest[at + 1..]);
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let start = name.trim_end_matches(is_part).len();
        masked.push_str(&rest[..=at]);
        rest = value;
        let follows_mark = name[..start].ends_with(['?', '&']) || start == 0;
        if follows_mark && SECRET_PARAMETERS.contains(&&*name[start..].to_ascii_lowercase()) {
            let is_end = |c: char| c.is_whitespace() || "&\"'`<>(){}|\\,;".contains(c);
            let end = value.find(is_end).unwrap_or(value.len());
            if end > 0 {
                masked.push_str(MASK);
            }
            rest = &value[end..];
        }
    }
    masked.push_str(rest);
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_user_names_and_signatures_of_urls() {
        for (text, masked) in [
            ("http://u:p@h:1/x", "http://***@h:1/x"),
            (
                "proxy \"http://u:p@x@h\" failed",
                "proxy \"http://***@h\" failed",
            ),
            ("https://h/a@b", "https://h/a@b"),
            (
                "(https://h/c/p?sv=1&sig=ab%2Fc&se=2)",
                "(https://h/c/p?sv=1&sig=***&se=2)",
            ),
            ("?X-Amz-Signature=abc", "?X-Amz-Signature=***"),
            ("sig=abc", "sig=***"),
            ("path=\"sig=\"", "path=\"sig=\""),
            ("tokens=3", "tokens=3"),
            ("k=v/part", "k=v/part"),
            ("ünï://ü:ö@日?sig=日 x", "ünï://***@日?sig=*** x"),
        ] {
            assert_eq!(mask_urls(text), masked);
        }
    }

    #[test]
    fn masks_what_s3_repeats_of_a_signed_request() {
        for (text, masked) in [
            (
                "<Error><CanonicalRequest>GET\n/b\nx-amz-security-token:tok\n</CanonicalRequest>\
                 <CanonicalRequestBytes>74 6f 6b</CanonicalRequestBytes><HostId>h</HostId></Error>",
                "<Error><CanonicalRequest>***</CanonicalRequest>\
                 <CanonicalRequestBytes>***</CanonicalRequestBytes><HostId>h</HostId></Error>",
            ),
            (
                "<StringToSign>AWS4\nx</StringToSign><StringToSignBytes>41</StringToSignBytes>",
                "<StringToSign>***</StringToSign><StringToSignBytes>***</StringToSignBytes>",
            ),
            ("cut <CanonicalRequest>GET tok", "cut <CanonicalRequest>***"),
            (
                "ü X-Amz-Security-Token: tok/en+=\nx-amz-date:d",
                "ü X-Amz-Security-Token:***\nx-amz-date:d",
            ),
            ("x-amz-security-token:\nhost", "x-amz-security-token:\nhost"),
            (
                "host;x-amz-security-token</SignedHeaders>",
                "host;x-amz-security-token</SignedHeaders>",
            ),
        ] {
            assert_eq!(mask_urls(text), masked);
        }
    }

    #[test]
    fn masks_values_of_secret_options() {
        let pairs = [
            ("azure_storage_sas_key", "sv=1&sig=abcd"),
            ("proxy_url", "user:passw0rd@proxy:80"),
            ("aws_region", "eu-1"),
        ];
        let options = BTreeMap::from(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())));
        let secrets = Secrets::from_options(&options);
        assert_eq!(
            secrets.mask("eu-1: sv=1&sig=abcd, passw0rd"),
            "eu-1: ***, ***"
        );
        assert!(!format!("{secrets:?}").contains("passw0rd"));
        assert_eq!(
            mask_option("proxy_url", &options["proxy_url"]),
            "***@proxy:80"
        );
        assert_eq!(mask_option("aws_region", "eu-1"), "eu-1");
        assert_eq!(mask_option("AWS_Secret_Access_Key", "x"), "***");
    }
}
