//! A host's end of a session.

use offload_proto::{
    FindingCode,
    v1::{self, dpu_message, host_message, workload_network_client::WorkloadNetworkClient},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use crate::service_support::Setup;

pub(crate) struct Session {
    pub(crate) out: mpsc::Sender<v1::HostMessage>,
    pub(crate) from_dpu: Streaming<v1::DpuMessage>,
}

impl Session {
    pub(crate) async fn open(setup: &Setup) -> Self {
        Self::by(setup.host()).await
    }

    pub(crate) async fn by(mut host: WorkloadNetworkClient<Channel>) -> Self {
        let (out, messages) = mpsc::channel(8);
        let opened = host.session(ReceiverStream::new(messages)).await;
        Self { out, from_dpu: opened.unwrap().into_inner() }
    }

    pub(crate) async fn send(&self, message: host_message::Message) {
        self.out.send(v1::HostMessage { message: Some(message) }).await.unwrap();
    }

    pub(crate) async fn receive(&mut self) -> Result<Option<dpu_message::Message>, Status> {
        Ok(self.from_dpu.message().await?.and_then(|message| message.message))
    }

    pub(crate) async fn greeted(setup: &Setup) -> (Self, v1::HelloReply) {
        let mut session = Self::open(setup).await;
        session.send(hello()).await;
        match session.receive().await.unwrap() {
            Some(dpu_message::Message::HelloReply(hello_reply)) => (session, hello_reply),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn hello() -> host_message::Message {
    host_message::Message::Hello(v1::Hello {
        protocol: Some(v1::ProtocolVersions { lowest: 1, highest: 7 }),
        agent_version: "test".into(),
        boot_id: "boot-1".into(),
        ..v1::Hello::default()
    })
}

impl Session {
    /// A host that supports examinations.
    pub(crate) async fn examinable(setup: &Setup) -> Self {
        let mut session = Self::open(setup).await;
        let host_message::Message::Hello(hello) = hello() else { unreachable!() };
        let capabilities = vec!["examine".to_owned()];
        session.send(host_message::Message::Hello(v1::Hello { capabilities, ..hello })).await;
        assert!(matches!(session.receive().await, Ok(Some(dpu_message::Message::HelloReply(_)))));
        session
    }

    /// Answers the next examination.
    pub(crate) async fn find(&mut self, subjects: &[&str]) {
        let request_id = self.asked().await;
        self.answer(request_id, subjects).await;
    }

    /// Waits for the next examination.
    pub(crate) async fn asked(&mut self) -> u64 {
        self.examine().await.request_id
    }

    /// Waits for the next examination or repair.
    pub(crate) async fn examine(&mut self) -> v1::Examine {
        let asked = self.receive().await.unwrap();
        let Some(dpu_message::Message::Examine(asked)) = asked else { panic!("{asked:?}") };
        asked
    }

    pub(crate) async fn answer(&self, request_id: u64, subjects: &[&str]) {
        let found = |subject: &&str| FindingCode::VfDiffers.of(subject, "its MTU is 1400");
        let examination = v1::Examination {
            request_id,
            findings: subjects.iter().map(found).collect(),
            ..v1::Examination::default()
        };
        self.send(host_message::Message::Examination(examination)).await;
    }
}
