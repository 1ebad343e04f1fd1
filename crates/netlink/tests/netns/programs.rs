//! XDP programs: attached with `ip`, read and detached by the crate.

use netlink::{LinkChange, Request, VethEnd, XdpMode};

use crate::support::TestNetns;

const MODES: [(XdpMode, &str); 2] = [(XdpMode::Generic, "xdpgeneric"), (XdpMode::Driver, "xdpdrv")];

fn with_pair() -> TestNetns {
    let netns = TestNetns::new();
    netns.rtnl().change(Request::add_veth(&VethEnd::new("one"), &VethEnd::new("two"))).unwrap();
    netns
}

#[test]
fn xdp_program_is_read_and_detached() {
    if !crate::xdp::may_be_attached() {
        return;
    }
    let netns = with_pair();
    let mut rtnl = netns.rtnl();
    let (_folder, program) = crate::xdp::dropping_program();
    for (mode, word) in MODES {
        netns.run(&format!("ip link set one {word} object {} section xdp", program.display()));
        let link = rtnl.link_by_name("one").unwrap().unwrap();
        assert_eq!(link.xdp, [mode]);
        rtnl.change_link(link.index, &LinkChange::new().without_xdp(mode)).unwrap();
        assert_eq!(netns.link("one")["xdp"], serde_json::Value::Null);
        assert_eq!(rtnl.link_by_name("one").unwrap().unwrap().xdp, []);
    }
}

#[test]
fn detaching_absent_xdp_program_is_harmless() {
    let netns = with_pair();
    let mut rtnl = netns.rtnl();
    let before = rtnl.link_by_name("one").unwrap().unwrap();
    for (mode, _) in MODES {
        rtnl.change_link(before.index, &LinkChange::new().without_xdp(mode)).unwrap();
    }
    assert_eq!(rtnl.link_by_name("one").unwrap().unwrap(), before);
}
