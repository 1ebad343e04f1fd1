//! Examinations of hosts.

use std::fs;

use offload_proto::{
    Reason,
    v1::{self, operator_client::OperatorClient},
};
use tonic::transport::Channel;

use crate::{
    service_support::{Setup, reason},
    session::Session,
};

/// A finding of a single look is dropped, and a host that stops answering keeps the findings of the first look.
#[test]
fn differences_of_two_looks_are_reported() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut host = Session::examinable(&setup).await;
        let mut operator = setup.operator();
        let mut shown = async |wait_ms| {
            let examined = operator.examine(v1::ExamineRequest { wait_ms }).await;
            let found = examined.unwrap().into_inner().findings.into_iter();
            let mut found: Vec<_> = found.map(|it| format!("{} {}", it.code, it.subject)).collect();
            found.sort();
            found
        };
        let answers = async {
            host.find(&["pf0vf1", "pf0vf2"]).await;
            host.find(&["pf0vf2", "pf0vf3"]).await;
        };
        let (found, ()) = tokio::join!(shown(60_000), answers);
        assert_eq!(found, ["VF_DIFFERS pf0vf2"]);
        let (found, ()) = tokio::join!(shown(3000), host.find(&["pf0vf1"]));
        assert_eq!(found, ["HOST_NOT_EXAMINED node-1", "VF_DIFFERS pf0vf1"]);
    });
}

#[test]
fn repair_is_audited_with_its_reason() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut operator = setup.operator();
        let repair = |reason: &str| v1::RepairRequest { wait_ms: 1, reason: reason.into() };
        operator.repair(repair("ticket 7")).await.unwrap();
        let refused = operator.repair(repair(&"x".repeat(100_000))).await.map(drop);
        assert_eq!(reason(refused), Reason::InvalidRequest);
        let entries = repairs(&mut operator).await;
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        let v1::AuditEntry { author, action, object, after, reason, .. } = entry;
        assert!(author.starts_with("operator/") && after.contains("found"), "{entry:?}");
        assert_eq!([action.as_str(), object, reason], ["Repair", "dpu", "ticket 7"]);
    });
    let log = fs::read_to_string(setup.path("log")).unwrap();
    assert!(log.contains("ticket 7"), "{log}");
}

/// Audit entries about the DPU as a whole.
async fn repairs(operator: &mut OperatorClient<Channel>) -> Vec<v1::AuditEntry> {
    let request = v1::ListAuditRequest { object: "dpu".into(), ..v1::ListAuditRequest::default() };
    operator.list_audit(request).await.unwrap().into_inner().entries
}

#[test]
fn repair_is_audited_before_the_next_look() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut host = Session::examinable(&setup).await;
        let (mut operator, mut auditor) = (setup.operator(), setup.operator());
        let repair = operator.repair(v1::RepairRequest { wait_ms: 60_000, reason: String::new() });
        let answers = async {
            let repaired = loop {
                let v1::Examine { request_id, repair, .. } = host.examine().await;
                host.answer(request_id, &["pf0vf1"]).await;
                if repair {
                    break host.asked().await;
                }
            };
            let entries = repairs(&mut auditor).await;
            assert!(entries[0].after.contains("VF_DIFFERS pf0vf1"), "{entries:?}");
            host.answer(repaired, &[]).await;
        };
        let (repaired, ()) = tokio::join!(repair, answers);
        let found = repaired.unwrap().into_inner().findings;
        assert_eq!(found[0].state(), v1::FindingState::Repaired, "{found:?}");
    });
}

#[test]
fn concurrent_examination_is_refused() {
    let setup = Setup::new();
    let _service = setup.start();
    setup.client(async || {
        let mut host = Session::examinable(&setup).await;
        let (mut first, mut second) = (setup.operator(), setup.operator());
        let mut call = Box::pin(first.examine(v1::ExamineRequest { wait_ms: 60_000 }));
        let asked = tokio::select! {
            answered = &mut call => panic!("{answered:?}"),
            asked = host.asked() => asked,
        };
        let examined = second.examine(v1::ExamineRequest::default()).await.map(drop);
        let repaired = second.repair(v1::RepairRequest::default()).await.map(drop);
        for refused in [examined, repaired] {
            let shown = refused.as_ref().unwrap_err().message().to_owned();
            assert!(shown.contains("one at a time") && shown.contains("try again"), "{shown}");
            assert_eq!(reason(refused), Reason::Overloaded);
        }
        let answers = async {
            host.answer(asked, &["pf0vf1"]).await;
            host.find(&["pf0vf1"]).await;
        };
        let (diagnosis, ()) = tokio::join!(call, answers);
        let found = diagnosis.unwrap().into_inner().findings;
        assert!(found.iter().any(|found| found.subject == "pf0vf1"), "{found:?}");
        tokio::join!(host.find(&[]), async {
            second.examine(v1::ExamineRequest::default()).await.unwrap();
        });
    });
}
