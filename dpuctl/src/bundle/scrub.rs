//! Removes keys and tokens from texts, wherever they come from.

const REMOVED: &str = "(removed)";
const PEM: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";
const BEARER: &str = "bearer ";

/// The text with PEM sections and bearer tokens replaced.
pub(super) fn scrub(text: &str) -> String {
    let without_pem = replace(text, |rest| rest.starts_with(PEM), pem_length);
    replace(&without_pem, is_bearer, token_length)
}

/// Replaces what begins where `begins` says so, and is as long as `length` says.
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

/// To the end of the section's last line, or of the text if it has none.
fn pem_length(section: &str) -> usize {
    let end = section.find(PEM_END).map(|end| end + PEM_END.len());
    let end = end.and_then(|end| Some(end + section[end..].find("-----")? + 5));
    end.unwrap_or(section.len())
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
}
