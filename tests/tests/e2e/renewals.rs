//! Certificates replaced during calls, on both sides at once.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Lab, Netns, Program, Settings, Stopwatch, program, run,
    scenarios::{End, figure},
    wait_for,
};
use mtls::Role;

use crate::events::number_of_events;

const LIMIT: Duration = Duration::from_secs(60);

/// Role and name of the certificates' holders.
const HOLDERS: [(&str, &str); 2] = [("dpu", "dpu-1"), ("host", "node-1")];

/// Creates a certificate and key of `holder` in `folder`.
fn issue(lab: &Lab, (role, name): (&str, &str), folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let authority = lab.pki.ca();
    let mut command = Command::new(program("dpuctl"));
    command.args(["pki", "issue", role, name, "--force", "--dir"]).arg(authority.parent().unwrap());
    let output = run(command.arg("--out").arg(folder));
    assert!(output.status.success(), "{output:?}");
}

/// Waits until agent and service have each logged `what` one more time than before `change`.
fn await_logs_of_both(lab: &Lab, what: &str, change: impl FnOnce()) {
    let count = |program: &Program| program.log().matches(what).count();
    let before = [count(&lab.service), count(&lab.agent)];
    change();
    wait_for(what, LIMIT, || {
        let now = [count(&lab.service), count(&lab.agent)];
        (now[0] > before[0] && now[1] > before[1]).then_some(())
    });
}

/// Points `link` to `target` atomically.
fn swap(link: &Path, target: &Path) {
    let mut next = link.as_os_str().to_owned();
    next.push(".next");
    symlink(target, &next).unwrap_or_else(|error| panic!("{next:?}: {error}"));
    fs::rename(&next, link).unwrap();
}

/// Each way in which certificates are replaced, valid and invalid.
fn replace_in_all_ways(lab: &Lab) {
    let ca = lab.pki.ca();
    let folder = ca.parent().unwrap();
    let file =
        |(role, name): (&str, &str), kind: &str| folder.join(format!("{role}-{name}.{kind}"));
    await_logs_of_both(lab, "certificates read", || {
        HOLDERS.iter().for_each(|holder| issue(lab, *holder, folder));
    });
    for rubbish in ["rubbish", ""] {
        await_logs_of_both(lab, "are refused; ", || {
            HOLDERS.iter().for_each(|holder| fs::write(file(*holder, "crt"), rubbish).unwrap());
        });
    }
    // Like secrets in Kubernetes: files are links through a folder's link, which is swapped.
    let data = folder.join("..data");
    for version in ["v1", "v2"] {
        await_logs_of_both(lab, "certificates read", || {
            HOLDERS.iter().for_each(|holder| issue(lab, *holder, &folder.join(version)));
            swap(&data, Path::new(version));
            for path in HOLDERS.iter().flat_map(|it| [file(*it, "key"), file(*it, "crt")]) {
                swap(&path, &Path::new("..data").join(path.file_name().unwrap()));
            }
        });
    }
}

#[test]
fn no_call_fails_while_certificates_are_replaced() {
    let lab = Lab::start(&Settings::default());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut pods = 0;
            while !is_over.load(Ordering::Relaxed) {
                let pod = Netns::new("pod");
                let _ = lab.add("blue", &pod, "eth0").result();
                let _ = lab.operator().get("attachments");
                lab.del("blue", &pod, "eth0").nothing();
                pods += 1;
            }
            pods
        });
        {
            let _end = End(&is_over);
            replace_in_all_ways(&lab);
        }
        let pods: usize = calls.join().unwrap();
        assert!(pods > 10, "{pods}");
        figure(pods, "pods attached and detached while certificates were replaced");
    });
    assert!(lab.status().status.success());
    lab.assert_clean_slate();
}

/// Replaces the certificate of `host/node-1` by that of `host/node-2`.
fn mistake_for_another(lab: &Lab) {
    lab.pki.issue("host", "node-2");
    fs::copy(lab.pki.certificate("host", "node-2"), lab.pki.certificate("host", "node-1")).unwrap();
    fs::copy(lab.pki.key("host", "node-2"), lab.pki.key("host", "node-1")).unwrap();
}

#[test]
fn agent_refuses_another_hosts_certificate() {
    let lab = Lab::start(&Settings::default());
    let doctor = || String::from_utf8(lab.operator().dpuctl(&["doctor"]).stdout).unwrap();
    mistake_for_another(&lab);
    wait_for("a doctor who tells of it", LIMIT, || {
        let text = doctor();
        let reported = ["spiffe://dpu-offload.local/host/node-2", "restart it"];
        reported.iter().all(|words| text.contains(words)).then_some(())
    });
    let _ = lab.add("blue", &Netns::new("pod"), "eth0").result();
    lab.pki.issue("host", "node-1");
    wait_for("a doctor who is content", LIMIT, || {
        lab.operator().dpuctl(&["doctor"]).status.success().then_some(())
    });
    lab.assert_invariants();
}

#[test]
fn certificate_expiry_is_reported_early() {
    let lab = Lab::start(&Settings::default());
    lab.pki.issue_expiring_soon(Role::Dpu, "dpu-1");
    lab.pki.issue_expiring_soon(Role::Host, "node-1");
    wait_for("a doctor who tells of both", LIMIT, || {
        let text = String::from_utf8(lab.operator().dpuctl(&["doctor"]).stdout).unwrap();
        let reported = ["dpu-dpu-1.crt expires on ", "host-node-1.crt expires on "];
        reported.iter().all(|sentence| text.contains(sentence)).then_some(())
    });
    let status = lab.operator().output(&["status"]);
    assert!(status.contains("dpu-dpu-1.crt expires on "), "{status}");
    // STATUS still succeeds: running pods are not affected.
    assert!(lab.status().status.success());
    await_logs_of_both(&lab, "certificates read", || {
        HOLDERS.iter().for_each(|(role, name)| lab.pki.issue(role, name));
    });
    let _ = lab.operator().output(&["doctor"]);
}

/// Several times the time for reading a certificate and opening a session.
const LIFE: Duration = Duration::from_secs(30);

/// A session ends with the certificate with which it was opened.
fn a_session_ends_with_the_certificate(role: Role, name: &str) {
    let mut lab = Lab::start(&Settings::default());
    let read = |lab: &Lab| lab.service.log().matches("certificates read").count();
    let before = read(&lab);
    lab.pki.issue_for(LIFE, role, name);
    if role == Role::Dpu {
        wait_for("the service to read it", LIMIT, || (read(&lab) > before).then_some(()));
    }
    lab.agent.stop();
    lab.start_agent();
    lab.wait_until_good();
    wait_for("an ADD that is refused", LIMIT, || {
        let pod = Netns::new("pod");
        let answer = lab.add("blue", &pod, "eth0");
        lab.del("blue", &pod, "eth0").nothing();
        let is_refused = || answer.error().1.contains("CERTIFICATE_REFUSED");
        (!answer.status.success() && is_refused()).then_some(())
    });
    assert_expiry_is_reported(&lab, role);
    if role == Role::Host {
        wait_for("the agent to tell why", LIMIT, || {
            let log = lab.agent.log();
            let reported = ["host-node-1.crt expires on ", "host-node-1.crt expired on "];
            reported.iter().all(|sentence| log.contains(sentence)).then_some(())
        });
    }
    lab.pki.issue(role.as_str(), name);
    lab.wait_until_good();
    let _ = lab.add("blue", &Netns::new("pod"), "eth0").result();
    lab.assert_invariants();
}

/// Every report names the expired certificate and where to renew it.
fn assert_expiry_is_reported(lab: &Lab, role: Role) {
    if role == Role::Dpu {
        let words = ["spiffe://dpu-offload.local/dpu/dpu-1", "expired on 20", "on the DPU"];
        lab.add("blue", &Netns::new("pod"), "eth0").fails(126, &words);
        wait_for("a STATUS that tells it", LIMIT, || {
            (!lab.status().status.success()).then_some(())
        });
        return lab.status().fails(50, &words);
    }
    let away = "node-1 is not connected: ";
    let names_end = |line: &str| line.contains("session ended") && line.contains("expired on 20");
    wait_for("a status that tells it", LIMIT, || {
        let fault = lab.operator().fault("HOST_NOT_CONNECTED")?;
        let message = fault["message"].as_str()?;
        (message.contains(away) && names_end(message)).then_some(())
    });
    let doctor = String::from_utf8(lab.operator().dpuctl(&["doctor"]).stdout).unwrap();
    let is_it = |line: &str| line.starts_with("HOST_NOT_CONNECTED  node-1: ") && names_end(line);
    assert!(doctor.lines().any(is_it) && doctor.contains(" on the host"), "{doctor}");
    let log = lab.service.log();
    let reported = log.lines().any(|it| it.contains("HostDisconnected") && names_end(it));
    assert!(reported, "{log}");
}

/// An agent with a slow clock presents a certificate that it considers valid.
#[test]
fn refused_host_learns_its_certificate_problem() {
    let mut lab = Lab::start(&Settings::default());
    lab.agent.stop();
    lab.pki.expire(Role::Host, "node-1");
    let mut openssl = lab.card.host.command("openssl");
    openssl.args(["s_client", "-connect", "192.168.100.2:7443", "-alpn", "h2", "-ign_eof"]);
    openssl.arg("-cert").arg(lab.pki.certificate("host", "node-1"));
    let _ = run(openssl.arg("-key").arg(lab.pki.key("host", "node-1")));
    let reported = "was refused: it expired on 20";
    wait_for("a doctor who tells of it", LIMIT, || {
        let doctor = String::from_utf8(lab.operator().dpuctl(&["doctor"]).stdout).unwrap();
        (doctor.contains("HOST_NOT_CONNECTED") && doctor.contains(reported)).then_some(())
    });
    let log = lab.service.log();
    assert!(log.lines().any(|it| it.contains("HostRefused") && it.contains(reported)), "{log}");
    lab.pki.issue("host", "node-1");
    lab.start_agent();
    lab.wait_until_good();
    let status = lab.operator().output(&["status"]);
    assert!(!status.contains(reported), "{status}");
}

#[test]
fn session_ends_with_host_certificate() {
    a_session_ends_with_the_certificate(Role::Host, "node-1");
}

#[test]
fn session_ends_with_dpu_certificate() {
    a_session_ends_with_the_certificate(Role::Dpu, "dpu-1");
}

/// Often enough that a successor is always in use before a certificate expires.
const RENEWED_EVERY: Duration = Duration::from_secs(3);

#[test]
fn short_lived_certificates_fail_no_call() {
    let mut lab = Lab::start(&Settings::default());
    let renew = |lab: &Lab| {
        lab.pki.issue_for(LIFE, Role::Dpu, "dpu-1");
        lab.pki.issue_for(LIFE, Role::Host, "node-1");
    };
    await_logs_of_both(&lab, "certificates read", || renew(&lab));
    lab.agent.stop();
    lab.start_agent();
    lab.wait_until_good();
    let renewals = || number_of_events(&lab, "HostRenewed");
    let ends = || number_of_events(&lab, "HostDisconnected");
    let ended = ends();
    let begun = Stopwatch::start();
    let (mut renewed, mut pods) = (begun, 0);
    while begun.elapsed() < LIFE || renewals() < 2 {
        if renewed.elapsed() > RENEWED_EVERY {
            renew(&lab);
            renewed = Stopwatch::start();
        }
        let pod = Netns::new("pod");
        let _ = lab.add("blue", &pod, "eth0").result();
        lab.status().nothing();
        lab.del("blue", &pod, "eth0").nothing();
        pods += 1;
        assert!(begun.unstalled() < 2 * LIMIT, "{} renewals", renewals());
    }
    assert_eq!(ends(), ended, "a renewal is told as an end");
    figure(pods, "pods attached and detached by certificates that live for 30 s");
    lab.assert_clean_slate();
}
