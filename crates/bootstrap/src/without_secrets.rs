//! Removes values that may be secret from configurations, for reports.

use toml::{Table, Value};

const REMOVED: &str = "(removed)";

/// Parts of key names that mark secrets.
const SECRET_KEYS: [&str; 8] = [
    "token",
    "secret",
    "password",
    "passphrase",
    "credential",
    "authorization",
    "header",
    "private",
];

/// The table as TOML without comments. Replaces values that may be secret: those with such key names, and texts with
/// PEM, a bearer token, or a user's password in a URL. File paths stay.
pub(crate) fn without_secrets(mut table: Table) -> String {
    clean_table(&mut table);
    toml::to_string(&table).unwrap_or_default()
}

fn clean_table(table: &mut Table) {
    for (key, value) in table {
        let key = key.to_ascii_lowercase();
        if SECRET_KEYS.iter().any(|secret| key.contains(secret)) {
            *value = Value::String(REMOVED.into());
        } else {
            clean(value);
        }
    }
}

fn clean(value: &mut Value) {
    match value {
        Value::String(text) if is_secret(text) => *text = REMOVED.into(),
        Value::Array(values) => values.iter_mut().for_each(clean),
        Value::Table(table) => clean_table(table),
        _ => {}
    }
}

fn is_secret(text: &str) -> bool {
    let has_user = |(_, rest): (&str, &str)| {
        rest.split('/').next().is_some_and(|authority| authority.contains('@'))
    };
    text.contains("-----BEGIN")
        || text.to_ascii_lowercase().contains("bearer ")
        || text.split_once("://").is_some_and(has_user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_and_paths_are_not() {
        let text = r#"
            # Bearer abc
            name = "dpu-1"
            api_token = "abc"
            collector = "http://user:abc@[fd00::1]:4317/x@y"
            mail = "http://[fd00::1]:4317/x@y"
            texts = ["-----BEGIN PRIVATE KEY-----abc", "Bearer abc"]
            [tls]
            key = "/etc/dpu.key"
            [[further]]
            headers = { x = "abc" }
        "#;
        let cleaned = without_secrets(toml::from_str(text).unwrap());
        assert!(!cleaned.contains("abc"), "{cleaned}");
        for kept in ["dpu-1", "/etc/dpu.key", "/x@y", "api_token"] {
            assert!(cleaned.contains(kept), "{kept}: {cleaned}");
        }
    }
}
