//! What the parser says of a value, in the words of those who write networks: it speaks of Rust's types.

/// How the parser refuses what is no number, or one that does not fit.
const NO_NUMBER: [&str; 5] = [
    "data did not match any variant of untagged enum Content",
    "invalid digit found in string",
    "number too large to fit in target type",
    "number too small to fit in target type",
    "cannot parse integer from empty string",
];

/// What `said` means for the value at the path `segments`.
pub(super) fn sentence(said: &str, segments: &[&str]) -> String {
    if NO_NUMBER.iter().any(|end| said.ends_with(end)) {
        return format!("it must be {}", number(segments));
    }
    if let Some(key) = duplicate(said) {
        return format!("the key `{key}` is there twice");
    }
    if let Some((found, message)) = said.rsplit_once(", expected struct offload.v1.") {
        return written_as(message, found);
    }
    let said = said.replacen("invalid type: sequence", "invalid type: list", 1);
    said.strip_suffix("expected a sequence").map_or(said.clone(), |start| {
        format!("{start}expected a list, of which each item begins with `- `")
    })
}

/// The key that is there twice, if that is what `said` tells.
pub(super) fn duplicate(said: &str) -> Option<&str> {
    said.strip_prefix("duplicate field `")?.strip_suffix('`')
}

/// Which numbers may be there.
fn number(segments: &[&str]) -> &'static str {
    let is_name = |segment: &&&str| segment.parse::<usize>().is_err();
    match segments.iter().rfind(is_name) {
        Some(&"vlan" | &"trunk") => "a whole number from 1 to 4094",
        Some(&"mtu") if !segments.contains(&"routes") => "a whole number from 1280 to 9216",
        _ => "a whole number that is not negative",
    }
}

/// How a message of the protocol is written; `found` tells what is there in its place.
fn written_as(message: &str, found: &str) -> String {
    let value = found.split('"').nth(1);
    let item = |key: &str, example: &str| {
        format!("an item is written as `- {key}: {}`", value.unwrap_or(example))
    };
    match message {
        "Network" if found.ends_with("sequence") => {
            "a document is one network, not a list of them: separate networks by a line `---`"
                .into()
        }
        "Network" => "a network is written as keys with values, such as `name: blue`".into(),
        "Subnet" => item("cidr", "10.3.0.0/24"),
        "Route" => item("destination", "10.3.0.0/24"),
        "PolicyRule" => item("source", "10.3.0.0/24"),
        "AddressRange" => "an item is written as `- {start: 10.3.0.10, end: 10.3.0.20}`".into(),
        "Dns" => "it is written as `{nameservers: [10.3.0.53]}`".into(),
        "Bandwidth" => "it is written as `{ingressRate: 250000000}`".into(),
        _ => format!("{found}, expected keys with values"),
    }
}
