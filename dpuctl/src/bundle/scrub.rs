//! Removes keys and tokens from texts of any source.

const REMOVED: &str = "(removed)";
const PEM: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";
const BEARER: &str = "bearer ";

/// The text with PEM sections and bearer tokens replaced.
pub(super) fn scrub(text: &str) -> String {
    let without_pem = replace(text, |rest| rest.starts_with(PEM), pem_length);
    replace(&without_pem, is_bearer, token_length)
}

/// Replaces each part that begins where `begins` is true and is `length` bytes long.
fn replace(text: &str, begins: impl Fn(&str) -> bool, length: impl Fn(&str) -> usize) -> String {
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(next) = rest.chars().next() {
        if begins(rest) {
            clean.push_str(REMOVED);
            rest = &rest[length(rest)..];
        } else {
            clean.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    clean
}

/// Length up to the end of the section's last line, or of all characters that a key could have. A host can choose a
/// text that looks like the beginning of a key: what follows that text is kept, and JSON stays valid.
fn pem_length(section: &str) -> usize {
    let mut length = PEM.len();
    while let Some(step) = step_in_pem(&section[length..]) {
        length += step;
    }
    let end = section[..length].find(PEM_END).map(|end| end + PEM_END.len());
    let end = end.and_then(|end| Some(end + section[end..].find("-----")? + 5));
    end.unwrap_or(length)
}

/// The length of the next character of a PEM section, or of JSON's escape for a line break.
fn step_in_pem(rest: &str) -> Option<usize> {
    if rest.starts_with("\\n") || rest.starts_with("\\r") {
        return Some(2);
    }
    let is_of_pem = |c: &char| c.is_ascii_alphanumeric() || "+/=-:,. \t\r\n".contains(*c);
    rest.chars().next().filter(is_of_pem).map(char::len_utf8)
}

fn is_bearer(rest: &str) -> bool {
    rest.get(..BEARER.len()).is_some_and(|start| start.eq_ignore_ascii_case(BEARER))
}

fn token_length(rest: &str) -> usize {
    let is_of_token = |c: char| c.is_ascii_alphanumeric() || "-._~+/=".contains(c);
    let token = &rest[BEARER.len()..];
    BEARER.len() + token.find(|c| !is_of_token(c)).unwrap_or(token.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_tokens_are_removed() {
        let text = "a: \"Bearer abc.d-e\", é\n-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\nb";
        assert_eq!(scrub(text), "a: \"(removed)\", é\n(removed)\nb");
        assert_eq!(scrub("-----BEGIN PRIVATE KEY-----\nabc"), "(removed)");
        assert_eq!(scrub("forbearance"), "forbearance");
    }

    #[test]
    fn json_with_half_a_key_stays_json() {
        for name in ["see -----BEGIN here", "-----BEGIN KEY-----\nabc", "-----BEGIN \"KEY\"-----\n"]
        {
            let text = serde_json::json!({ "name": name, "end": "-----END KEY-----" }).to_string();
            let clean: serde_json::Value = serde_json::from_str(&scrub(&text)).unwrap();
            assert_eq!(clean["end"], "-----END KEY-----", "{text}");
            assert!(!clean["name"].as_str().unwrap().contains("-----BEGIN"), "{clean}");
        }
    }
}
