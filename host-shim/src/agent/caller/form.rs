//! The form of a call and of its answer: the plugin's, or a CNI runtime's.

use std::io;

use serde_json::{Map, Value};

use super::Answer;
use crate::{
    cni::{
        environment::{Environment, Verb},
        error::{CniError, Refusal, code},
        request::{Document, ResultBase, prepare},
        version::{self, Version},
    },
    protocol::{CniReply, CniRequest, Reply, Request},
};

#[derive(Debug)]
pub(in crate::agent) enum Form {
    /// A [`Reply`], from which the plugin builds the runtime's answer.
    Plain,
    /// A CNI result or error of this version.
    Cni(Version, Box<ResultBase>),
}

impl Form {
    /// Converts a runtime's call to a request and the form of its answer. `Err`: the answer to a call that needs no
    /// work.
    pub(in crate::agent) fn of(call: CniRequest) -> Result<(Request, Self), CniReply> {
        if call.command == Verb::Version.as_str() {
            return Err(CniReply::Result(Some(version::answer())));
        }
        read(call).map_err(|refusal| refused(&refusal))
    }

    /// The answer to a call that cannot be decoded, in the form of its verb. `None`: the document is no JSON object.
    pub(in crate::agent) fn undecodable(call: &[u8], why: &io::Error) -> Option<Value> {
        let object: Map<String, Value> = serde_json::from_slice(call).ok()?;
        let message = format!("cannot decode the call: {why}");
        let error = CniError::new(code::UNDECODABLE, message);
        match object.get("verb").is_some_and(|verb| verb == "cni") {
            true => serde_json::to_value(refused(&error.into())).ok(),
            false => {
                let CniError { code, message, details } = error;
                serde_json::to_value(Reply::Failed { code, message, details }).ok()
            }
        }
    }

    pub(super) fn document(&self, answer: Answer) -> serde_json::Result<Vec<u8>> {
        match self {
            Self::Plain => serde_json::to_vec(&Reply::from(answer)),
            Self::Cni(version, base) => {
                let result = (**base).clone().answer(*version, answer.into());
                let refusal = |error| refused(&Refusal { version: *version, error });
                serde_json::to_vec(&result.map_or_else(refusal, CniReply::Result))
            }
        }
    }
}

/// Reads a CNI call as the plugin reads its environment and standard input.
fn read(call: CniRequest) -> Result<(Request, Form), Refusal> {
    let environment = Environment {
        command: call.command,
        container_id: call.container_id,
        netns: call.netns,
        interface_name: call.interface_name,
        args: call.args,
        ..Environment::default()
    };
    let verb = environment.verb()?;
    let mut document = Document::read(call.configuration.to_string().as_bytes())?;
    document.keeps_results = false;
    let version = document.version;
    let prepared = prepare(verb, &environment, document);
    let prepared = prepared.map_err(|error| Refusal { version, error })?;
    Ok((prepared.request, Form::Cni(version, Box::new(prepared.base))))
}

fn refused(refusal: &Refusal) -> CniReply {
    CniReply::Error(refusal.error.to_json(refusal.version))
}

#[cfg(test)]
mod tests {
    use offload_proto::{Failure, Reason, v1};
    use serde_json::json;

    use super::*;

    fn call(command: &str, keys: &Value) -> CniRequest {
        let mut configuration = json!({"cniVersion": "1.1.0", "name": "n", "type": "host-shim"});
        configuration.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        CniRequest {
            command: command.into(),
            container_id: "c".into(),
            netns: "/run/netns/a".into(),
            interface_name: "eth0".into(),
            args: "K8S_POD_NAME=web;IgnoreUnknown=1".into(),
            configuration,
        }
    }

    fn answer_of(form: &Form, answer: Answer) -> Value {
        serde_json::from_slice(&form.document(answer).unwrap()).unwrap()
    }

    #[test]
    fn cni_add_is_answered_with_a_result() {
        let asked = call("ADD", &json!({"runtimeConfig": {"dns": {"Servers": ["10.0.0.53"]}}}));
        let (Request::Add(add), form) = Form::of(asked).unwrap() else { panic!("it is an ADD") };
        assert_eq!((add.interface.network.as_str(), add.pod.name.as_str()), ("n", "web"));
        let key = v1::AttachmentKey { container_id: "c".into(), interface_name: "eth0".into() };
        let attachment = v1::Attachment { key: Some(key), ..Default::default() };
        let result = &answer_of(&form, Answer::Attached(vec![attachment]))["result"];
        assert_eq!(result["cniVersion"], "1.1.0");
        let interface = json!({"name": "eth0", "sandbox": "/run/netns/a"});
        assert_eq!(result["interfaces"], json!([interface]));
        assert_eq!(result["dns"]["nameservers"], json!(["10.0.0.53"]));
    }

    #[test]
    fn cni_del_and_failure_have_their_forms() {
        let (_, form) = Form::of(call("DEL", &json!({}))).unwrap();
        assert_eq!(answer_of(&form, Answer::Done), json!({"result": null}));
        let failure = Failure::new(Reason::VfsExhausted, "no VF is left");
        let error = &answer_of(&form, failure.into())["error"];
        assert_eq!(error["code"], Reason::VfsExhausted.cni_code());
        assert_eq!(error["msg"], "no VF is left");
    }

    #[test]
    fn malformed_cni_calls_are_refused() {
        let refusal = |asked| match Form::of(asked).unwrap_err() {
            CniReply::Error(error) => error["code"].as_u64().unwrap(),
            CniReply::Result(result) => panic!("{result:?}"),
        };
        assert_eq!(refusal(call("UPDATE", &json!({}))), 4);
        assert_eq!(refusal(call("ADD", &json!({"runtimeConfig": {"ipRanges": [[{}]]}}))), 2);
        assert_eq!(refusal(call("ADD", &json!({"cniVersion": "9.0.0"}))), 1);
        let reply = Form::of(call("VERSION", &json!({}))).unwrap_err();
        assert_eq!(reply, CniReply::Result(Some(version::answer())));
    }

    #[test]
    fn check_without_result_uses_the_record() {
        let (request, _) = Form::of(call("CHECK", &json!({}))).unwrap();
        let Request::Check(check) = request else { panic!("it is a CHECK") };
        assert!(check.by_record && check.mac.is_none() && check.addresses.is_empty());
    }
}
