//! Static credentials from the shared credentials file of AWS.

use std::path::PathBuf;

use object_store::aws::AwsCredential;

/// The static credentials of `profile` in `AWS_SHARED_CREDENTIALS_FILE`, by default `~/.aws/credentials`. None if the
/// file, the profile, its key id or its secret key is missing.
pub(super) fn load(profile: &str) -> Option<AwsCredential> {
    let file = std::env::var_os("AWS_SHARED_CREDENTIALS_FILE")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".aws/credentials")))?;
    parse(&std::fs::read_to_string(file).ok()?, profile)
}

fn parse(text: &str, profile: &str) -> Option<AwsCredential> {
    let mut inside = false;
    let (mut key_id, mut secret_key, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            inside = section.trim() == profile;
        } else if let (true, Some((name, value))) = (inside, line.split_once('=')) {
            let value = Some(value.trim().to_owned());
            match name.trim() {
                "aws_access_key_id" => key_id = value,
                "aws_secret_access_key" => secret_key = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    Some(AwsCredential {
        key_id: key_id?,
        secret_key: secret_key?,
        token,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_named_profile_only() {
        let text = "[default]\naws_access_key_id = A\naws_secret_access_key = B\n[dev]\naws_access_key_id=C\naws_secret_access_key=D\naws_session_token=T\n";
        assert_eq!(parse(text, "default").unwrap().key_id, "A");
        let dev = parse(text, "dev").unwrap();
        assert_eq!(
            (dev.key_id.as_str(), dev.token.as_deref()),
            ("C", Some("T"))
        );
        assert!(parse(text, "prod").is_none());
    }
}
