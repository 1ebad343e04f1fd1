//! The netavark plugin, by which podman has containers on the DPU since it has no CNI any more. It is the
//! program of the CNI plugin: netavark gives the verb as an argument, a CNI runtime in the environment.
//!
//! | files | what they are |
//! | --- | --- |
//! | `network` | a network as podman keeps it, and what of it can be had here |
//! | `call` | what netavark says of a container, and the CNI call of the same meaning |
//! | `answer` | what netavark is told of a CNI result |
//!
//! A setup is an ADD and a teardown is a DEL, so that all that holds of those holds here. The contract is
//! netavark's `docs/plugin-API.md`, version 1.0.0 of its API: JSON on standard input and output; a failure is
//! exit status 1 and `{"error": "…"}` on standard output.

mod answer;
mod call;
mod network;

use std::{
    fmt,
    io::{self, Read, Write},
    process::ExitCode,
};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cni::{environment::Verb as CniVerb, error::CniError, plugin};
use call::ContainerCall;

/// The version of netavark's contract.
const API_VERSION: &str = "1.0.0";

/// Longest document that is read, in bytes: as long as a CNI configuration.
const DOCUMENT_LIMIT: u64 = 1024 * 1024;

/// What netavark asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// What the plugin is.
    Info,
    /// Whether a network can be, and how it is to be kept.
    Create,
    /// Attach a container.
    Setup,
    /// Detach a container.
    Teardown,
}

impl Verb {
    /// By the first argument. `None`: it is none of netavark's.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "info" => Some(Self::Info),
            "create" => Some(Self::Create),
            "setup" => Some(Self::Setup),
            "teardown" => Some(Self::Teardown),
            _ => None,
        }
    }
}

/// Why a call failed, as podman's user gets to see it: one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<CniError> for Refusal {
    fn from(error: CniError) -> Self {
        match error.details.is_empty() {
            true => Self(error.message),
            false => Self(format!("{}: {}", error.message, error.details)),
        }
    }
}

/// Answers the call of that verb on standard input; `netns` is the second argument.
///
/// The exit code is 0 for success and 1 for a failure, whose error is on standard output.
#[must_use]
pub fn run(verb: Verb, netns: Option<&str>) -> ExitCode {
    let (document, code) = match answer(verb, netns, io::stdin().lock()) {
        Ok(document) => (document, ExitCode::SUCCESS),
        Err(refusal) => (Some(json!({ "error": refusal.to_string() })), ExitCode::FAILURE),
    };
    match document.map(|document| writeln!(io::stdout(), "{document}")) {
        Some(Err(_)) => ExitCode::FAILURE,
        Some(Ok(())) | None => code,
    }
}

/// Answers a call. `None`: success that needs no words.
///
/// # Errors
/// What the user is told.
pub fn answer(verb: Verb, netns: Option<&str>, input: impl Read) -> Result<Option<Value>, Refusal> {
    match verb {
        Verb::Info => Ok(Some(info())),
        Verb::Create => network::create(read(input)?).map(Some),
        Verb::Setup => {
            let call: ContainerCall = read(input)?;
            let answered = ask(CniVerb::Add, &call, netns)?;
            answered.map(|result| answer::of_result(&result, call.interface_name())).transpose()
        }
        Verb::Teardown => ask(CniVerb::Del, &read(input)?, netns),
    }
}

fn info() -> Value {
    json!({ "version": env!("CARGO_PKG_VERSION"), "api_version": API_VERSION })
}

fn ask(verb: CniVerb, call: &ContainerCall, netns: Option<&str>) -> Result<Option<Value>, Refusal> {
    let netns = netns.filter(|netns| !netns.is_empty());
    let netns = netns.ok_or_else(|| {
        Refusal("the path of the network namespace is missing: it is the second argument".into())
    })?;
    let configuration = call.configuration(verb)?.to_string();
    plugin::answer(&call.environment(verb, netns), configuration.as_bytes())
        .map_err(|refusal| refusal.error.into())
}

fn read<T: DeserializeOwned>(input: impl Read) -> Result<T, Refusal> {
    let undecodable =
        |why: &dyn fmt::Display| Refusal(format!("what netavark says can't be decoded: {why}"));
    let mut document = Vec::new();
    input
        .take(DOCUMENT_LIMIT + 1)
        .read_to_end(&mut document)
        .map_err(|error| undecodable(&error))?;
    if document.len() as u64 > DOCUMENT_LIMIT {
        return Err(undecodable(&format!("it is longer than {DOCUMENT_LIMIT} bytes")));
    }
    serde_json::from_slice(&document).map_err(|error| undecodable(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netavarks_verbs_are_known_by_their_names() {
        assert_eq!(Verb::parse("teardown"), Some(Verb::Teardown));
        assert_eq!(Verb::parse("ADD"), None);
        assert_eq!(answer(Verb::Info, None, io::empty()).unwrap().unwrap()["api_version"], "1.0.0");
    }

    #[test]
    fn what_is_no_document_is_refused_as_such() {
        for input in ["", "[]", "{\"container_id\": 1}"] {
            let refusal = answer(Verb::Setup, Some("/run/netns/a"), input.as_bytes()).unwrap_err();
            assert!(refusal.0.contains("decoded: "), "{refusal}");
        }
        let endless = io::repeat(b' ');
        let refusal = answer(Verb::Create, None, endless).unwrap_err();
        assert!(refusal.0.ends_with(" 1048576 bytes"), "{refusal}");
    }

    #[test]
    fn an_error_has_its_advice_with_it() {
        let error = CniError::new(7, "no VF").with_details("VFS_EXHAUSTED: stop pods");
        assert_eq!(Refusal::from(error).0, "no VF: VFS_EXHAUSTED: stop pods");
    }
}
