//! Link events and waits for a carrier.

use std::time::Duration;

use netlink::{CarrierWatch, LinkChange, LinkChanges, LinkEvent, LinkMonitor, Request, VethEnd};
use test_clock::{Stopwatch, within};

use crate::support::TestNetns;

/// The first event for which `wanted` returns a value, within ten seconds.
async fn first<T>(monitor: &mut LinkMonitor, wanted: impl Fn(LinkEvent) -> Option<T>) -> T {
    let search = async {
        loop {
            if let Some(found) = wanted(monitor.next().await.unwrap()) {
                return found;
            }
        }
    };
    within(Duration::from_secs(10), search).await.expect("no such event")
}

fn changed(name: &'static str) -> impl Fn(LinkEvent) -> Option<netlink::Link> {
    move |event| match event {
        LinkEvent::Changed(link) if link.name == name => Some(*link),
        _ => None,
    }
}

fn gone(name: &'static str) -> impl Fn(LinkEvent) -> Option<(u32, Option<String>)> {
    move |event| match event {
        LinkEvent::Gone { index, name: gone, alias, .. } if gone == name => Some((index, alias)),
        _ => None,
    }
}

#[tokio::test]
async fn link_monitor_reports_every_change() {
    let (host, pod) = (TestNetns::new(), TestNetns::new());
    let mut monitor = LinkMonitor::open(&host.netns).unwrap();
    host.run("ip link add name vf index 50 type veth peer name rep");
    assert_eq!(first(&mut monitor, changed("vf")).await.index, 50);

    // The kernel sends no event for a new alias of a link that is down, until another change.
    host.run("ip link set dev vf alias who");
    host.run("ip link set dev vf mtu 1400");
    let aliased = |event| changed("vf")(event).filter(|link| link.alias.is_some());
    assert_eq!(first(&mut monitor, aliased).await.alias.as_deref(), Some("who"));

    let change = LinkChange::new().netns(&pod.netns);
    host.rtnl().change_link(50, &change).unwrap();
    assert_eq!(first(&mut monitor, gone("vf")).await, (50, Some("who".to_owned())));

    let back = LinkChange::new().netns(&host.netns).name("again");
    pod.rtnl().change_link(50, &back).unwrap();
    first(&mut monitor, changed("again")).await;

    host.run("ip link del again");
    first(&mut monitor, gone("rep")).await;
}

#[tokio::test]
async fn leaving_a_bridge_is_no_deletion() {
    let host = TestNetns::new();
    host.run("ip link add name br type bridge");
    host.run("ip link add name vf type veth peer name rep");
    host.run("ip link set dev rep master br");
    let mut monitor = LinkMonitor::open(&host.netns).unwrap();
    host.run("ip link set dev rep nomaster");
    host.run("ip link del dev br");
    let reported = first(&mut monitor, |event| match event {
        LinkEvent::Gone { name, .. } => Some(name),
        _ => None,
    });
    assert_eq!(reported.await, "br");
}

#[tokio::test]
async fn link_monitor_reports_bridge_port_settings() {
    let host = TestNetns::new();
    host.run("ip link add name br index 60 type bridge");
    host.run("ip link add name vf type veth peer name rep");
    host.run("ip link set dev rep master br");
    let rep = host.rtnl().link_by_name("rep").unwrap().unwrap().index;
    let mut monitor = LinkMonitor::open(&host.netns).unwrap();
    host.run("bridge link set dev rep isolated on");
    let reported = first(&mut monitor, |event| match event {
        LinkEvent::PortChanged { index, bridge } => Some((index, bridge)),
        _ => None,
    });
    assert_eq!(reported.await, (rep, 60));
}

#[tokio::test]
async fn link_monitor_covers_peer_namespaces() {
    let (dpu, host, pod) = (TestNetns::new(), TestNetns::new(), TestNetns::new());
    let mut monitor = LinkMonitor::open_with_neighbours(&dpu.netns).unwrap();
    let vf = VethEnd::new("vf").index(50).netns(&host.netns);
    dpu.rtnl().change(Request::add_veth(&VethEnd::new("rep").index(51), &vf)).unwrap();
    // The kernel sends no event for a new alias of a link that is down, until another change.
    host.run("ip link set dev vf alias who");
    host.run("ip link set dev vf mtu 1400");
    let aliased = |event| changed("vf")(event).filter(|link| link.alias.is_some());
    first(&mut monitor, aliased).await;

    // The pod's namespace gets an ID when the representor is read after the move.
    host.rtnl().change_link(50, &LinkChange::new().netns(&pod.netns)).unwrap();
    let rep = dpu.rtnl().link_by_name("rep").unwrap().unwrap();
    assert_eq!(dpu.rtnl().peer_of(&rep).unwrap().unwrap().name, "vf");
    pod.run("ip link set dev vf name net1");
    assert_eq!(first(&mut monitor, changed("net1")).await.alias.as_deref(), Some("who"));
}

/// Changes a link `vf` more often than the kernel queues events.
fn change_more_than_is_queued(host: &TestNetns) {
    host.run("ip link add name vf index 50 type veth peer name rep");
    let mut rtnl = host.rtnl();
    let flip: Vec<_> =
        (0..64).map(|turn| Request::change_link(50, &LinkChange::new().mtu(1400 + turn))).collect();
    for _ in 0..300 {
        rtnl.batch(&flip).unwrap();
    }
}

#[tokio::test]
async fn overrun_is_reported_as_missed() {
    let host = TestNetns::new();
    let mut monitor = LinkMonitor::open(&host.netns).unwrap();
    change_more_than_is_queued(&host);
    first(&mut monitor, |event| (event == LinkEvent::Missed).then_some(())).await;
    host.run("ip link set dev vf name after");
    first(&mut monitor, changed("after")).await;
}

/// Does not wait: the event is queued before the change is visible.
#[test]
fn poll_returns_changes_since_last_poll() {
    let host = TestNetns::new();
    let mut changes = LinkChanges::open(&host.netns).unwrap();
    assert_eq!(changes.take().unwrap(), []);
    host.run("ip link add name vf index 50 type veth peer name rep");
    host.run("ip link add link vf name upper type macvlan");
    let reported = changes.take().unwrap();
    assert!(
        reported.iter().any(|event| matches!(event, LinkEvent::Changed(link) if link.index == 50))
    );
    assert!(reported.iter().any(
        |event| matches!(event, LinkEvent::Changed(link) if (link.name.as_str(), link.peer) == ("upper", Some(50)))
    ));
    assert_eq!(changes.take().unwrap(), []);
    host.run("ip link del upper");
    let reported = changes.take().unwrap();
    assert!(
        reported
            .iter()
            .any(|event| matches!(event, LinkEvent::Gone { name, .. } if name == "upper"))
    );
}

#[test]
fn late_poll_reports_missed_changes() {
    let host = TestNetns::new();
    let mut changes = LinkChanges::open(&host.netns).unwrap();
    change_more_than_is_queued(&host);
    assert_eq!(changes.take().unwrap(), [LinkEvent::Missed]);
    host.run("ip link set dev vf name after");
    let reported = changes.take().unwrap();
    assert!(
        reported
            .iter()
            .any(|event| matches!(event, LinkEvent::Changed(link) if link.name == "after"))
    );
}

#[tokio::test]
async fn carrier_wait_is_bounded() {
    let host = TestNetns::new();
    let mut rtnl = host.rtnl();
    rtnl.change(Request::add_veth(&VethEnd::new("vf").index(50), &VethEnd::new("rep").index(51)))
        .unwrap();
    rtnl.change_link(50, &LinkChange::new().up()).unwrap();
    let mut watch = || CarrierWatch::unless_there(&host.netns, &mut rtnl, 50).unwrap();
    let start = Stopwatch::start();
    assert!(!watch().unwrap().wait(Duration::from_millis(20)).await.unwrap());
    assert!(start.elapsed() >= Duration::from_millis(20));
    let coming = watch().unwrap();
    let switch_on = async { host.rtnl().change_link(51, &LinkChange::new().up()).unwrap() };
    let (came, ()) = tokio::join!(coming.wait(Duration::from_secs(10)), switch_on);
    assert!(came.unwrap());
    assert!(start.unstalled() < Duration::from_secs(5));
    assert!(watch().is_none());
}

#[tokio::test]
async fn carrier_wait_ends_with_its_link() {
    let host = TestNetns::new();
    let mut rtnl = host.rtnl();
    host.run("ip link add name vf index 50 up type veth peer name rep");
    let watch = CarrierWatch::unless_there(&host.netns, &mut rtnl, 50);
    host.run("ip link delete dev vf");
    let error = watch.unwrap().unwrap().wait(Duration::from_secs(10)).await.unwrap_err();
    assert!(error.to_string().contains("carrier of link 50"), "{error}");
}
