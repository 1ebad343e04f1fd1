//! The netavark plugin: gives podman's containers networks of the DPU. It is the same program as the CNI plugin:
//! netavark passes the verb as an argument, a CNI runtime in the environment.
//!
//! | files | contents |
//! | --- | --- |
//! | `network` | podman's network, and which of its settings are refused |
//! | `call` | netavark's call, converted to a CNI call |
//! | `answer` | the CNI result, converted to netavark's answer |
//!
//! A setup is an ADD and a teardown is a DEL. The contract is netavark's `docs/plugin-API.md`, API version 1.0.0: JSON
//! on standard input and output. A failure is exit status 1 and `{"error": "…"}` on standard output.

mod answer;
mod call;
mod network;
mod refusal;

use std::{
    fmt,
    io::{self, Read, Write},
    process::ExitCode,
};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cni::{environment::Verb as CniVerb, plugin};
use call::ContainerCall;
pub use refusal::Refusal;

const API_VERSION: &str = "1.0.0";

/// The longest document that is read, in bytes: the same as for a CNI configuration.
const DOCUMENT_LIMIT: u64 = 1024 * 1024;

/// What netavark asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Report the plugin's version.
    Info,
    /// Check a new network and return what podman stores.
    Create,
    /// Attach a container.
    Setup,
    /// Detach a container.
    Teardown,
}

impl Verb {
    /// Parses the first argument. `None`: it is no verb of netavark.
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

/// Answers the call on standard input; `netns` is the second argument.
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

/// Answers a call. `None`: success without output.
///
/// # Errors
/// The sentence for podman's user.
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
        |why: &dyn fmt::Display| Refusal(format!("cannot decode netavark's input: {why}"));
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
    use crate::cni::error::CniError;

    #[test]
    fn netavark_verbs_are_parsed() {
        assert_eq!(Verb::parse("teardown"), Some(Verb::Teardown));
        assert_eq!(Verb::parse("ADD"), None);
        assert_eq!(answer(Verb::Info, None, io::empty()).unwrap().unwrap()["api_version"], "1.0.0");
    }

    #[test]
    fn undecodable_netavark_input_is_refused() {
        for input in ["", "[]", "{\"container_id\": 1}"] {
            let refusal = answer(Verb::Setup, Some("/run/netns/a"), input.as_bytes()).unwrap_err();
            assert!(refusal.0.contains("cannot decode "), "{refusal}");
        }
        let endless = io::repeat(b' ');
        let refusal = answer(Verb::Create, None, endless).unwrap_err();
        assert!(refusal.0.ends_with(" 1048576 bytes"), "{refusal}");
    }

    #[test]
    fn netavark_error_includes_advice() {
        let error = CniError::new(7, "no VF").with_details("VFS_EXHAUSTED: stop pods");
        assert_eq!(Refusal::from(error).0, "no VF: VFS_EXHAUSTED: stop pods");
    }
}
