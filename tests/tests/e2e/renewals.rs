//! Certificates replaced while calls are in flight, on both sides at once.

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
    Lab, Netns, Program, Settings, program, run,
    scenarios::{End, figure},
    wait_for,
};
use mtls::Role;

const LIMIT: Duration = Duration::from_secs(60);

/// Whose certificates are replaced: role and name.
const HOLDERS: [(&str, &str); 2] = [("dpu", "dpu-1"), ("host", "node-1")];

/// Makes a certificate and key of `holder` in `folder`.
fn issue(lab: &Lab, (role, name): (&str, &str), folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let authority = lab.pki.ca();
    let mut command = Command::new(program("dpuctl"));
    command.args(["pki", "issue", role, name, "--force", "--dir"]).arg(authority.parent().unwrap());
    let output = run(command.arg("--out").arg(folder));
    assert!(output.status.success(), "{output:?}");
}

/// Waits until agent and service have said `what` once more than before `change`.
fn both_say(lab: &Lab, what: &str, change: impl FnOnce()) {
    let count = |program: &Program| program.log().matches(what).count();
    let before = [count(&lab.service), count(&lab.agent)];
    change();
    wait_for(what, LIMIT, || {
        let now = [count(&lab.service), count(&lab.agent)];
        (now[0] > before[0] && now[1] > before[1]).then_some(())
    });
}

/// Points `link` to `target` in one step.
fn swap(link: &Path, target: &Path) {
    let mut next = link.as_os_str().to_owned();
    next.push(".next");
    symlink(target, &next).unwrap_or_else(|error| panic!("{next:?}: {error}"));
    fs::rename(&next, link).unwrap();
}

/// Each way in which certificates are replaced, good and bad.
fn replace_in_all_ways(lab: &Lab) {
    let ca = lab.pki.ca();
    let folder = ca.parent().unwrap();
    let file =
        |(role, name): (&str, &str), kind: &str| folder.join(format!("{role}-{name}.{kind}"));
    both_say(lab, "certificates read", || {
        HOLDERS.iter().for_each(|holder| issue(lab, *holder, folder));
    });
    for rubbish in ["rubbish", ""] {
        both_say(lab, "are refused; the earlier ones stay", || {
            HOLDERS.iter().for_each(|holder| fs::write(file(*holder, "crt"), rubbish).unwrap());
        });
    }
    // As Kubernetes mounts secrets: files are links through a folder's link, which is swapped.
    let data = folder.join("..data");
    for version in ["v1", "v2"] {
        both_say(lab, "certificates read", || {
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

#[test]
fn the_end_of_both_sides_certificates_is_told_ahead_of_time() {
    let lab = Lab::start(&Settings::default());
    lab.pki.wear_out(Role::Dpu, "dpu-1");
    lab.pki.wear_out(Role::Host, "node-1");
    wait_for("a doctor who tells of both", LIMIT, || {
        let text = String::from_utf8(lab.operator().dpuctl(&["doctor"]).stdout).unwrap();
        let told = ["dpu-dpu-1.crt expires on ", "host-node-1.crt expires on "];
        told.iter().all(|sentence| text.contains(sentence)).then_some(())
    });
    let status = lab.operator().says(&["status"]);
    assert!(status.contains("dpu-dpu-1.crt expires on "), "{status}");
    // STATUS stays good: what runs, runs well.
    assert!(lab.status().status.success());
    both_say(&lab, "certificates read", || {
        HOLDERS.iter().for_each(|(role, name)| lab.pki.issue(role, name));
    });
    let _ = lab.operator().says(&["doctor"]);
}
