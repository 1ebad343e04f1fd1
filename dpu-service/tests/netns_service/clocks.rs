//! A DPU whose clock is set.

use std::{fs, process::Command};

use jiff::{SignedDuration, Timestamp, fmt::rfc2822::DateTimeParser};
use mtls::Role;
use offload_proto::{
    ConditionReason,
    condition::AS_EXPECTED,
    event::EventKind,
    v1::{self, operator_client::OperatorClient},
};
use test_clock::wait_until_async;
use tonic::transport::Channel;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::service_support::{Service, Setup};

/// More calls than worker threads.
const CALLS: usize = 32;

/// The service's clock: a preloaded library that replaces the C library's.
struct Clock<'a>(&'a Setup);

impl<'a> Clock<'a> {
    fn new(setup: &'a Setup) -> Self {
        let source = setup.path("clock.c");
        fs::write(&source, include_str!("clock.c")).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(setup.path("clock.so")).arg(source);
        assert!(compiler.status().unwrap().success());
        Self(setup)
    }

    /// Sets the clock ahead of this machine's.
    fn set(&self, ahead: SignedDuration) {
        fs::write(self.0.path("ahead.next"), ahead.as_secs().to_string()).unwrap();
        fs::rename(self.0.path("ahead.next"), self.0.path("ahead")).unwrap();
    }

    fn start_service(&self) -> Service<'a> {
        let library = ("LD_PRELOAD", self.0.path("clock.so"));
        self.0.start_with([library, ("OFFLOAD_TEST_CLOCK", self.0.path("ahead"))])
    }
}

/// Finding between the times of answers and this machine's: minimum and maximum, in minutes.
async fn minutes_ahead(operator: &mut OperatorClient<Channel>) -> (i64, i64) {
    let mut ahead = Vec::new();
    for _ in 0..CALLS {
        let answer = operator.get_dpu(v1::GetDpuRequest {}).await.unwrap();
        let date = answer.metadata().get("date").unwrap().to_str().unwrap();
        let time = DateTimeParser::new().parse_timestamp(date).unwrap();
        let rounded = time.duration_since(Timestamp::now()) + SignedDuration::from_secs(30);
        ahead.push(rounded.as_secs().div_euclid(60));
    }
    (*ahead.iter().min().unwrap(), *ahead.iter().max().unwrap())
}

/// `dpuctl` computes ages from the Date header.
#[test]
fn answers_have_the_time_of_the_dpu() {
    let setup = Setup::new();
    let clock = Clock::new(&setup);
    clock.set(SignedDuration::from_mins(30));
    let _service = clock.start_service();
    setup.client(async || {
        let mut operator = setup.operator();
        assert_eq!(minutes_ahead(&mut operator).await, (30, 30));
        clock.set(SignedDuration::ZERO);
        assert_eq!(minutes_ahead(&mut operator).await, (0, 0));
    });
}

/// Reasons of conditions about the certificate that are not true.
async fn certificate_faults(operator: &mut OperatorClient<Channel>) -> Vec<String> {
    let dpu = operator.get_dpu(v1::GetDpuRequest {}).await.unwrap().into_inner();
    let faults = dpu.conditions.into_iter();
    let faults = faults.filter(|it| it.r#type() == v1::ConditionType::CertificatesValid);
    faults.map(|it| it.reason).filter(|it| it != AS_EXPECTED).collect()
}

#[test]
fn clock_before_the_certificate_is_reported() {
    let setup = Setup::new();
    let clock = Clock::new(&setup);
    let _service = clock.start_service();
    let reason = ConditionReason::CertificateNotYetValid.as_str();
    setup.client(async || {
        let mut operator = setup.operator();
        let mut health = HealthClient::new(setup.channel(Role::Host, "node-1"));
        let mut is_healthy = async || {
            let request = HealthCheckRequest { service: "offload.v1.WorkloadNetwork".into() };
            let answer = health.check(request).await.unwrap().into_inner();
            answer.status() == ServingStatus::Serving
        };
        assert_eq!(certificate_faults(&mut operator).await, [""; 0]);
        wait_until_async("a healthy service", &mut is_healthy).await;
        clock.set(SignedDuration::from_hours(-1));
        wait_until_async("the condition", async || {
            certificate_faults(&mut operator).await == [reason]
        })
        .await;
        wait_until_async("a service that is not healthy", async || !is_healthy().await).await;
        clock.set(SignedDuration::ZERO);
        wait_until_async("a valid certificate", async || {
            certificate_faults(&mut operator).await.is_empty()
        })
        .await;
        wait_until_async("a healthy service again", &mut is_healthy).await;
        let kind = EventKind::ConditionFalse.as_str().to_owned();
        let filter = v1::EventFilter { kind, ..v1::EventFilter::default() };
        let listed = operator.list_events(v1::ListEventsRequest { filter: Some(filter) }).await;
        let events = listed.unwrap().into_inner().events;
        assert!(events.iter().any(|event| event.reason == reason), "{events:?}");
    });
}
