//! Services by the kube-proxy in the DPU's namespace, and DPU ports that lead to pods.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, UdpSocket},
    path::Path,
    thread,
};

use e2e::{
    cluster::{Cluster, LIMIT, deployment, name, pod, service},
    run, wait_for,
};
use serde_json::{Value, json};

/// The API server's Service.
const API: &str = "10.96.0.1";

/// The name server that the kubelet writes into pods' `/etc/resolv.conf`.
const DNS: &str = "10.96.0.10";

/// The node's address.
const NODE: &str = "192.168.100.1";

/// The DPU's end of the management link.
const DPU: &str = "192.168.100.2";

/// Serves its own name at 8080, and is ready once it does.
fn server() -> Value {
    json!({
        "command": ["sh", "-c", "hostname >/tmp/index.html; exec httpd -f -p 8080 -h /tmp"],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    })
}

/// A pod's HTTP request.
fn from_pod(cluster: &Cluster, client: &str, address: &str, port: u64) -> String {
    let request = r"printf 'GET /index.html HTTP/1.0\r\n\r\n'";
    let answer = cluster.in_pod(client, &format!("{request} | nc -w 5 {address} {port}"));
    answer.lines().last().unwrap_or_default().to_owned()
}

/// An HTTP request from a network namespace.
fn from_netns(netns: &Path, address: &str, port: u64) -> String {
    let script = format!(
        r"exec 3<>/dev/tcp/{address}/{port}; printf 'GET /index.html HTTP/1.0\r\n\r\n' >&3; cat <&3"
    );
    let mut command = netlink::Netns::command(netns, "timeout").unwrap();
    let output = run(command.args(["10", "bash", "-c", &script]));
    let answer = String::from_utf8(output.stdout).unwrap();
    answer.lines().last().unwrap_or_default().to_owned()
}

/// The namespace beyond the DPU's uplink.
fn outside() -> &'static Path {
    Path::new("/proc/1/ns/net")
}

/// The DPU's address at its uplink.
fn uplink(cluster: &Cluster) -> String {
    let links = cluster.dpu.json("ip", &["-4", "address", "show", "dev", "oob0"]);
    links[0]["addr_info"][0]["local"].as_str().unwrap().to_owned()
}

#[test]
fn services_are_reachable() {
    let cluster = Cluster::take();
    cluster.apply(&[deployment("web", 2, server()), service("web"), pod("client", json!({}))]);
    let pods = cluster.wait_for_ready(3);
    let web: BTreeSet<_> = pods.iter().map(name).filter(|name| *name != "client").collect();
    let service = cluster.get("service/web");
    let address = service["spec"]["clusterIP"].as_str().unwrap();
    wait_for("answers of both pods", LIMIT, || {
        let printed = (0..8).map(|_| from_pod(&cluster, "client", address, 80));
        let printed: BTreeSet<_> = printed.collect();
        (printed.iter().map(String::as_str).collect::<BTreeSet<_>>() == web).then_some(())
    });
    let itself = from_pod(&cluster, web.first().unwrap(), address, 80);
    assert!(web.contains(itself.as_str()), "a pod of it said {itself:?}");

    let port = service["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    let uplink = uplink(&cluster);
    for answer in [
        from_pod(&cluster, "client", DPU, port),
        from_netns(&cluster.host.path(), DPU, port),
        from_netns(&cluster.host.path(), address, 80),
        from_netns(outside(), &uplink, port),
    ] {
        assert!(web.contains(answer.as_str()), "{answer:?}");
    }
    assert!(cluster.succeeds_in("client", &format!("nc -w 5 {API} 443 </dev/null")));
    cluster.assert_gives_everything_back();
}

/// The server is the test's and on the node, like one of a DaemonSet with `hostNetwork`: the path to it is tested.
#[test]
fn pod_resolves_service_names() {
    let cluster = Cluster::take();
    let socket = UdpSocket::bind((NODE, 53)).unwrap();
    let answers = thread::spawn(move || answer(&socket, API.parse().unwrap()));
    let metadata = json!({"name": "dns"});
    let ports = json!([{"name": "dns", "protocol": "UDP", "port": 53}]);
    cluster.apply(&[
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"clusterIP": DNS, "ports": ports},
        }),
        json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": metadata,
            "subsets": [{"addresses": [{"ip": NODE}], "ports": ports}],
        }),
        pod("client", json!({})),
    ]);
    cluster.wait_for_ready(1);
    let reported = wait_for("an answer", LIMIT, || {
        let asked = ["exec", "client", "--", "nslookup", "kubernetes.default.svc.cluster.local"];
        let output = cluster.try_kubectl(&asked);
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    });
    assert!(reported.contains(&format!("{DNS}:53")) && reported.contains(API), "{reported}");
    assert!(!answers.is_finished());
    cluster.assert_gives_everything_back();
}

/// Answers each question for an A record with this address, and other questions with nothing.
fn answer(socket: &UdpSocket, address: Ipv4Addr) {
    const HEADER: usize = 12;
    const TYPE_AND_CLASS: usize = 4;
    let mut buffer = [0; 512];
    while let Ok((length, asker)) = socket.recv_from(&mut buffer) {
        let name = buffer[HEADER..length].iter().position(|byte| *byte == 0).unwrap();
        let end = HEADER + name + 1 + TYPE_AND_CLASS;
        let is_a = buffer[end - TYPE_AND_CLASS..end] == [0, 1, 0, 1];
        let mut reply = buffer[..end].to_vec();
        // A response without an error, to one question, with one record or none.
        reply[2..HEADER].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
        if is_a {
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
            reply.extend(address.octets());
        }
        socket.send_to(&reply, asker).unwrap();
    }
}

#[test]
fn container_host_port_is_mapped_on_dpu() {
    let cluster = Cluster::take();
    let mut container = server();
    container["ports"] = json!([{"containerPort": 8080, "hostPort": 18080}]);
    cluster.apply(&[pod("web", container)]);
    cluster.wait_for_ready(1);
    let uplink = uplink(&cluster);
    assert_eq!(from_netns(outside(), &uplink, 18080), "web");
    assert_eq!(from_netns(&cluster.host.path(), DPU, 18080), "web");
    cluster.delete(&["web"]);
    cluster.wait_for_attachments(0);
    assert_eq!(from_netns(outside(), &uplink, 18080), "");
    cluster.assert_gives_everything_back();
}
