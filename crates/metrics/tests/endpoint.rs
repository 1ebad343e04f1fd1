//! The endpoint over real sockets: valid, invalid, slow and many requests.
#![allow(clippy::unwrap_used, reason = "a failure is a panic at its place")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics::{Calls, Endpoint, OK, Page, Phases};
use test_clock::within;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep},
};

/// Longer than anything here takes.
const BOUND: Duration = Duration::from_secs(30);

const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: node-1\r\n\r\n";

fn on(address: &str) -> Option<SocketAddr> {
    Some(address.parse().unwrap())
}

fn page() -> Page {
    let mut page = Page::of("example", "1.2.3");
    page.gauge("ready", "Whether it is", 1);
    let labels = |state: &str| [("network", "a \"b\"".to_owned()), ("state", state.to_owned())];
    page.gauges("things", "Things by state", [(labels("new"), 2), (labels("old"), 3)]);
    page.counter("commits", "Commits", 4);
    let of_pod = |pod: &str| [("pod", pod.to_owned())];
    page.counters("bytes", "Bytes by pod", [(of_pod("a"), 5), (of_pod("b"), 6)]);
    let calls = Arc::new(Calls::new("verb", ["ADD", "DEL"]));
    calls.note("ADD", OK, Duration::from_millis(3));
    calls.note("ADD", "OVERLOADED", Duration::from_secs(60));
    calls.note("whatever", OK, Duration::ZERO);
    page.calls("example", "Calls", &calls);
    let phases = Phases::new(["wait", "work"]);
    phases.note("work", Duration::from_micros(200));
    page.phases("example", "Phases", &phases);
    page
}

/// Serves [`page`] until the test ends.
fn serve() -> SocketAddr {
    let endpoint = Endpoint::listen(on("127.0.0.1:0")).unwrap();
    let address = endpoint.address();
    tokio::spawn(endpoint.serve(async || page()));
    address
}

/// The whole answer to `request`.
async fn answer(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may answer and close the connection before the whole request is sent.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = within(BOUND, stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_scrape_reads_the_page_as_openmetrics() {
    let answer = answer(serve(), SCRAPE.as_bytes()).await;
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind), "{head}");
    let expected = [
        "# TYPE dpu_offload_build info",
        "dpu_offload_build_info{program=\"example\",version=\"1.2.3\"} 1",
        "# TYPE dpu_offload_ready gauge",
        "dpu_offload_ready 1",
        "# HELP dpu_offload_things Things by state.",
        "dpu_offload_things{network=\"a \\\"b\\\"\",state=\"new\"} 2",
        "dpu_offload_commits_total 4",
        "dpu_offload_example_calls_total{verb=\"ADD\",outcome=\"OK\"} 1",
        "dpu_offload_example_calls_total{verb=\"ADD\",outcome=\"OVERLOADED\"} 1",
        "dpu_offload_example_calls_total{verb=\"DEL\",outcome=\"OK\"} 0",
        "dpu_offload_example_calls_total{verb=\"other\",outcome=\"OK\"} 1",
        "# UNIT dpu_offload_example_call_duration_seconds seconds",
        "dpu_offload_example_call_duration_seconds_bucket{le=\"0.005\",verb=\"ADD\"} 1",
        "dpu_offload_example_call_duration_seconds_bucket{le=\"+Inf\",verb=\"ADD\"} 2",
        "dpu_offload_example_call_duration_seconds_count{verb=\"ADD\"} 2",
        "# UNIT dpu_offload_example_phase_duration_seconds seconds",
        "dpu_offload_example_phase_duration_seconds_bucket{le=\"0.0001\",phase=\"work\"} 0",
        "dpu_offload_example_phase_duration_seconds_bucket{le=\"0.00025\",phase=\"work\"} 1",
        "dpu_offload_example_phase_duration_seconds_count{phase=\"wait\"} 0",
    ];
    for line in expected {
        assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
    }
    assert!(text.ends_with("\n# EOF\n"), "{text}");
}

#[tokio::test]
async fn metrics_can_only_be_read() {
    let address = serve();
    for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"] {
        let request =
            format!("{method} /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
        let answer = answer(address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{method}: {answer}");
        assert!(answer.contains("allow: GET\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn there_is_nothing_else() {
    let address = serve();
    for path in ["/", "/metrics/", "/metrics/../metrics", "/debug/pprof", "/%6detrics"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = answer(address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
    }
}

#[tokio::test]
async fn malformed_or_overlong_requests_are_refused() {
    let address = serve();
    let line = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    let header = format!("GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(1 << 20));
    let headers = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1000));
    let bad = [line.as_str(), &header, &headers, "\0\x16\x03\x01\r\n\r\n", "GET\r\n\r\n", "\r\n"];
    for request in bad {
        let answer = answer(address, request.as_bytes()).await;
        let is_refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(is_refused, "{:.40}: {answer}", request);
    }
    assert!(answer(address, SCRAPE.as_bytes()).await.starts_with("HTTP/1.1 200 "));
}

/// With paused time the clock advances only while all tasks wait.
#[tokio::test(start_paused = true)]
async fn endless_request_times_out() {
    let address = serve();
    let begun = Instant::now();
    let half = &SCRAPE.as_bytes()[..20];
    let answer = answer(address, half).await;
    assert!(!answer.contains("200 OK"), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// A connection without a request within two seconds frees its place.
#[tokio::test(start_paused = true)]
async fn silent_clients_block_others_only_briefly() {
    let address = serve();
    let half = &SCRAPE.as_bytes()[..20];
    let mut crowd = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(if number % 2 == 0 { half } else { b"" }).await.unwrap();
        crowd.push(stream);
    }
    let begun = Instant::now();
    let answer = answer(address, SCRAPE.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn slow_reader_is_disconnected() {
    const TOO_LONG: Duration = Duration::from_secs(60);
    let endpoint = Endpoint::listen(on("127.0.0.1:0")).unwrap();
    let address = endpoint.address();
    // More than the kernel buffers for a connection.
    let long = async || {
        let mut page = page();
        let series = (0..200_000).map(|number| ([("number", number.to_string())], number));
        page.gauges("numbers", "Numbers", series);
        page
    };
    tokio::spawn(endpoint.serve(long));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(SCRAPE.as_bytes()).await.unwrap();
    sleep(TOO_LONG).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.ends_with(b"# EOF\n"), "{} bytes", answer.len());
}

#[tokio::test]
async fn queued_client_is_answered_despite_followers() {
    a_hundred_are_answered().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_client_is_answered_by_several_threads() {
    a_hundred_are_answered().await;
}

/// All have sent their requests before the first is accepted.
async fn a_hundred_are_answered() {
    let endpoint = Endpoint::listen(on("127.0.0.1:0")).unwrap();
    let address = endpoint.address();
    let mut crowd = Vec::new();
    for _ in 0..100 {
        let mut scraper = TcpStream::connect(address).await.unwrap();
        scraper.write_all(SCRAPE.as_bytes()).await.unwrap();
        crowd.push(scraper);
    }
    tokio::spawn(endpoint.serve(async || page()));
    for mut scraper in crowd {
        let mut answer = String::new();
        within(BOUND, scraper.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[tokio::test]
async fn without_an_address_nothing_is_served() {
    assert!(Endpoint::listen(None).is_none());
}

#[tokio::test(start_paused = true)]
async fn busy_address_is_served_once_free() {
    let first = Endpoint::listen(on("127.0.0.1:0")).unwrap();
    let address = first.address();
    let second = Endpoint::listen(on(&address.to_string())).unwrap();
    assert_eq!(second.address(), address);
    tokio::spawn(second.serve(async || page()));
    sleep(BOUND).await;
    drop(first);
    assert!(TcpStream::connect(address).await.is_err());
    sleep(BOUND).await;
    assert!(answer(address, SCRAPE.as_bytes()).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test(start_paused = true)]
async fn page_is_built_at_most_once_per_second() {
    let endpoint = Endpoint::listen(on("127.0.0.1:0")).unwrap();
    let address = endpoint.address();
    let made = Arc::new(AtomicU64::new(0));
    let look = {
        let made = Arc::clone(&made);
        move || {
            let number = made.fetch_add(1, Ordering::Relaxed) + 1;
            async move {
                // Longer than the second for which a page is reused.
                sleep(Duration::from_millis(1500)).await;
                let mut page = page();
                page.gauge("number", "Its number", number);
                page
            }
        }
    };
    tokio::spawn(endpoint.serve(look));
    for number in 1..=2 {
        let crowd = (0..10).map(|_| tokio::spawn(answer(address, SCRAPE.as_bytes())));
        for scrape in crowd.collect::<Vec<_>>() {
            let text = scrape.await.unwrap();
            assert!(text.contains(&format!("dpu_offload_number {number}\n")), "{text}");
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(made.load(Ordering::Relaxed), 2);
}
