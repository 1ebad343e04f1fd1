//! The service while its journal cannot be read: it refuses every call with the reason and changes neither the switch
//! nor the file, so running pods keep their network. It starts its work once the file can be read, repaired or replaced
//! by a copy.

use std::{
    io,
    os::fd::AsFd,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bootstrap::{Chain, ShutdownSignals, feed_watchdog, notify_ready};
use metrics::Calls;
use mtls::{LiveCredentials, Server, incoming};
use offload_proto::{Failure, Reason};
use tokio::{
    net::TcpListener,
    task::block_in_place,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request,
    service::{InterceptorLayer, Routes},
};
use tower::Layer;

use crate::{
    api::Count,
    attachments::Engine,
    certificates::Certificates,
    config::Config,
    error::ServiceError,
    records::OpenError,
    server::{LAST_ANSWERS, ServeError, connection_limits, listen},
    transport,
};

const RETRY_AFTER: Duration = Duration::from_secs(2);

pub(crate) struct Opened {
    pub(crate) engine: Arc<Engine>,
    /// The listener used while waiting for the journal, passed on so that no caller is refused in between.
    pub(crate) listener: Option<TcpListener>,
}

/// Opens the engine once its journal can be read. `None`: the service was stopped first.
pub(crate) async fn open_when_readable(
    config: &Config,
    certificates: &Certificates,
    calls: &Arc<Calls>,
    open: impl Fn() -> Result<Arc<Engine>, OpenError>,
    shutdown: &mut ShutdownSignals,
) -> Result<Option<Opened>, ServiceError> {
    let error = match open() {
        Err(error) if error.is_of_the_file() => error,
        opened => return Ok(Some(Opened { engine: opened?, listener: None })),
    };
    let failure = Failure::new(
        Reason::JournalUnavailable,
        format!("the journal cannot be read and is left unchanged: {}", Chain(&error)),
    );
    tracing::error!(error = %failure, "cannot start without the journal; retrying");
    // Ready although it refuses everything: the service manager must not restart it while the file is repaired.
    notify_ready();
    let (stop, kept) = (CancellationToken::new(), OnceLock::new());
    let refusing = async {
        let valid = stop.run_until_cancelled(certificates.valid()).await;
        let Some(credentials) = valid.transpose()? else { return Ok(()) };
        let listener = listen(config)?;
        let another = another(&listener)
            .map_err(|source| ServeError::Listen { address: config.listen, source })?;
        let _first = kept.set(another);
        refuse_all(listener, config, credentials, calls, failure, stop.clone()).await;
        Ok(())
    };
    let mut refusing = Box::pin(refusing);
    let engine = tokio::select! {
        () = shutdown.received() => return Ok(None),
        refused = &mut refusing => return refused.map(|()| None),
        never = feed_watchdog(|| true) => match never {},
        opened = try_again(open) => opened?,
    };
    // These connections are bound to the refusing service; their peers reconnect.
    stop.cancel();
    let _ = timeout(LAST_ANSWERS, &mut refusing).await;
    drop(refusing);
    Ok(Some(Opened { engine, listener: kept.into_inner() }))
}

/// Duplicates the listener's socket. The port cannot be bound again before the first listener is closed, and its
/// closing cannot be awaited.
fn another(listener: &TcpListener) -> io::Result<TcpListener> {
    TcpListener::from_std(listener.as_fd().try_clone_to_owned()?.into())
}

async fn try_again(
    open: impl Fn() -> Result<Arc<Engine>, OpenError>,
) -> Result<Arc<Engine>, OpenError> {
    loop {
        sleep(RETRY_AFTER).await;
        match block_in_place(&open) {
            Err(error) if error.is_of_the_file() => {}
            opened => return opened,
        }
    }
}

/// Refuses every call, including health checks.
async fn refuse_all(
    listener: TcpListener,
    config: &Config,
    credentials: LiveCredentials,
    calls: &Arc<Calls>,
    failure: Failure,
    stop: CancellationToken,
) {
    let limits = &config.limits;
    let server = Server::new(credentials, Duration::from_secs(limits.handshake_timeout_s));
    let connections = incoming(listener, server, connection_limits(limits));
    let (_, health) = tonic_health::server::health_reporter();
    let refuse = InterceptorLayer::new(move |_: Request<()>| Err(failure.clone().into()));
    let service = Count(Arc::clone(calls)).layer(refuse.layer(Routes::new(health).prepare()));
    transport::serve(connections, service, limits, stop).await;
}
