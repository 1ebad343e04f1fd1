//! Commands, their output and their failures.

use std::fs;

use offload_proto::Reason;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

use crate::service::{Dut, FULL_DISK, ID, Outcome, run};

/// The output of a successful command.
async fn output_of(dut: &Dut, line: &str) -> String {
    let Outcome { code, output, notes } = dut.dpuctl(line).await;
    assert_eq!((code, notes.as_str()), (0, ""), "{line}: {output}");
    output
}

#[tokio::test]
async fn lists_look_like_kubectl_s() {
    let dut = Dut::start().await;
    assert_eq!(
        output_of(&dut, "get pools").await,
        "\
NAME      FREE   IN USE   QUARANTINED   ABSENT   POLICY
default   60     4        0             0        spread
gold      60     4        0             0        by name
"
    );
    assert_eq!(
        output_of(&dut, "get vfs").await,
        "\
NAME     HOST     STATE         POOLS     ATTACHMENT   DETAIL
pf0vf3   node-1   Quarantined   default   -            reset failed
"
    );
    assert_eq!(
        output_of(&dut, "get attachments -o wide").await,
        "\
ID              HOST     POD        CONTAINER   INTERFACE   NETWORK   VF        ADDRESSES     STATE      AGE   MAC                 VLAN
0190aaaa-bbbb   node-1   -          c1          eth0        blue      pf0vf3    -             Attached   -     02:00:00:00:00:01   -
0190cccc-bbbb   node-1   web/shop   c2          eth0        blue      pf0vf10   10.1.0.5/16   Attached   -     02:00:00:00:00:01   -
"
    );
}

#[tokio::test]
async fn one_thing_can_be_asked_for_by_name() {
    let dut = Dut::start().await;
    assert_eq!(output_of(&dut, "get pools gold").await.lines().count(), 2);
    output_of(&dut, "get vfs pf0vf3").await;
    output_of(&dut, "get vfs d000:00:00.4").await;
    output_of(&dut, "get attachments 0190aaaa").await;
    output_of(&dut, "get attachments 0190aaaa --network blue --host node-1").await;
    assert_eq!(
        output_of(&dut, "get hosts away").await,
        "\
NAME   STATE          SINCE   AGENT   DETAIL
away   Disconnected   -       -       its certificate expired
"
    );
    assert_eq!(output_of(&dut, "get hosts").await.lines().count(), 3);
}

#[tokio::test]
async fn attachments_are_found_by_what_people_know() {
    let dut = Dut::start().await;
    for known in ["10.1.0.5", "shop", "web/shop", "c2", "pf0vf10", "0190cccc"] {
        let found = output_of(&dut, &format!("get attachments {known} --no-headers")).await;
        assert!(found.lines().count() == 1 && found.starts_with("0190cccc"), "{known}: {found}");
    }
    let all = output_of(&dut, "get attachments 0190 --no-headers").await;
    assert_eq!(all.lines().count(), 2, "{all}");
}

#[tokio::test]
async fn unknown_filters_are_errors() {
    let dut = Dut::start().await;
    for (line, shown) in [
        ("get attachments --network red", "network \"red\""),
        ("get attachments --host lost", "host \"lost\""),
        ("get attachments --network empty --host lost", "host \"lost\""),
        ("get vfs --host lost", "host \"lost\""),
        ("get hosts lost", "host \"lost\""),
        ("top --once --interval 1 --network red", "network \"red\""),
    ] {
        let outcome = dut.dpuctl(line).await;
        assert_eq!((outcome.code, &*outcome.output), (1, ""), "{line}");
        assert!(outcome.notes.contains(shown), "{line}: {}", outcome.notes);
    }
    // A host that serves without VFs is not a mistake.
    let outcome = dut.dpuctl("get vfs --host served").await;
    assert_eq!((outcome.code, &*outcome.notes), (0, "No VFs.\n"));
}

#[tokio::test]
async fn names_are_printed_for_xargs() {
    let dut = Dut::start().await;
    for (list, names) in [
        ("vfs", "vf/pf0vf3\n".to_owned()),
        ("attachments c1", format!("attachment/{ID}\n")),
        ("networks", "network/green\nnetwork/fixed\nnetwork/empty\n".to_owned()),
        ("pools", "pool/default\npool/gold\n".to_owned()),
        ("hosts", "host/served\nhost/away\n".to_owned()),
    ] {
        assert_eq!(output_of(&dut, &format!("get {list} -o name")).await, names, "{list}");
    }
    assert_eq!(output_of(&dut, "clear-quarantine vf/pf0vf3").await, "vf/pf0vf3 cleared\n");
    output_of(&dut, &format!("describe attachment attachment/{ID}")).await;
    output_of(&dut, "describe network network/green").await;
    output_of(&dut, "describe host host/served").await;
}

#[tokio::test]
async fn lists_are_sorted_and_without_headings() {
    let dut = Dut::start().await;
    let names = |list: String| -> Vec<String> { list.lines().map(String::from).collect() };
    let sorted = output_of(&dut, "get networks -o name --sort-by NAME").await;
    assert_eq!(names(sorted), ["network/empty", "network/fixed", "network/green"]);
    let sorted = output_of(&dut, "get attachments -o json --sort-by .vf.vf").await;
    let sorted: serde_json::Value = serde_json::from_str(&sorted).unwrap();
    assert_eq!(sorted["attachments"][1]["vf"]["vf"], 10);
    let rows = output_of(&dut, "get pools --no-headers --sort-by policy").await;
    assert!(rows.starts_with("gold ") && rows.lines().count() == 2, "{rows}");
    let outcome = dut.dpuctl("get pools --sort-by COLOUR").await;
    assert!(outcome.code == 2 && outcome.notes.contains("\"COLOUR\""), "{outcome:?}");
}

#[tokio::test]
async fn watched_lists_print_what_changes() {
    let dut = Dut::start().await;
    let lines = dut.first_lines("get pools --watch", 4).await;
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert_eq!(words(&lines[0])[..3], ["EVENT", "NAME", "FREE"]);
    assert_eq!(words(&lines[1])[..3], ["ADDED", "default", "60"]);
    assert_eq!(words(&lines[2])[..3], ["ADDED", "gold", "60"]);
    assert_eq!(words(&lines[3])[..3], ["MODIFIED", "default", "59"]);

    let dut = Dut::start().await;
    let lines = dut.first_lines("get pools default --watch -o json", 2).await;
    let change: serde_json::Value = serde_json::from_str(&lines[1]).unwrap();
    assert_eq!((&change["type"], &change["object"]["free"]), (&"MODIFIED".into(), &59.into()));
}

#[tokio::test]
async fn missing_object_has_code_and_advice() {
    let dut = Dut::start().await;
    for (line, error, code, list) in [
        ("get pools silver", "pool \"silver\"", "", "pools"),
        ("get vfs pf1vf3", "VF \"pf1vf3\"", "code: VF_UNKNOWN\n", "vfs"),
        (
            "get attachments ffff",
            "attachment \"ffff\"",
            "code: ATTACHMENT_UNKNOWN\n",
            "attachments",
        ),
        (
            "get attachments 0190 --network empty",
            "attachment \"0190\"",
            "code: ATTACHMENT_UNKNOWN\n",
            "attachments",
        ),
        ("get attachments --network red", "network \"red\"", "code: NETWORK_UNKNOWN\n", "networks"),
        ("describe network blue", "network \"blue\"", "code: NETWORK_UNKNOWN\n", "networks"),
        ("clear-quarantine pf9vf3", "VF pf9vf3", "code: VF_UNKNOWN\n", "vfs"),
    ] {
        let outcome = dut.dpuctl(line).await;
        let plural = if list == "vfs" { "VFs" } else { list };
        let advice = format!("advice: list the {plural} with `dpuctl get {list}`\n");
        let (shown, rest) = outcome.notes.split_once('\n').unwrap();
        assert!(shown.starts_with("error: ") && shown.ends_with(error), "{line}: {shown}");
        assert_eq!(rest, format!("{code}{advice}"), "{line}");
        assert_eq!(outcome.code, 1, "{line}");
    }
}

#[tokio::test]
async fn programs_get_json_and_yaml() {
    let dut = Dut::start().await;
    let json = output_of(&dut, "get vfs -o json").await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["vfs"][0]["state"], "VF_STATE_QUARANTINED");
    assert_eq!(json["vfs"][0]["vf"]["device"], "d000:00:00.4");
    assert_eq!(json["vfs"][0]["vf"]["controller"], 0, "zeros are there, too");
    let yaml = output_of(&dut, "status -o yaml").await;
    assert!(yaml.starts_with("name: dpu-1\nversion: '9.9'\n"), "{yaml}");
    assert!(yaml.contains("attachments: 0\n"), "{yaml}");
}

#[tokio::test]
async fn attachment_is_described_by_each_of_its_names() {
    let dut = Dut::start().await;
    for name in ["0190cccc", "10.1.0.5", "10.1.0.5/16", "shop", "web/shop", "c2", "pf0vf10"] {
        let text = output_of(&dut, &format!("describe attachment {name}")).await;
        assert!(text.contains("0190cccc-") && text.contains("web/shop"), "{name}: {text}");
    }
    let several = dut.dpuctl("describe attachment 02:00:00:00:00:01").await;
    assert!(several.code != 0 && several.output.is_empty(), "{several:?}");
    assert!(several.notes.contains(ID) && several.notes.contains("0190cccc-"), "{several:?}");
    assert_ne!(dut.dpuctl("describe attachment 10.1.0.6").await.code, 0);
}

#[tokio::test]
async fn events_are_a_table_or_json() {
    let dut = Dut::start().await;
    let table = output_of(&dut, "events --since 10m --object pf0vf3 --type warning").await;
    let words: Vec<_> = table.lines().map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!(words, ["KIND", "AttachmentReserved"]);
    let asked = dut.asked().pop().unwrap();
    let filter = "within_s: 600, object: \"pf0vf3\", kind: \"\", severity: Warning";
    assert!(asked.contains(filter), "{asked}");
    let json = output_of(&dut, "events --type HostConnected -o json").await;
    let listed: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(listed["events"][0]["sequence"], 1);
    assert!(dut.asked().pop().unwrap().contains("kind: \"HostConnected\", severity: Unspecified"));
}

#[tokio::test]
async fn dropped_events_are_named() {
    let dut = Dut::start().await;
    let outcome = dut.dpuctl(&format!("events --object {FULL_DISK}")).await;
    for named in ["Events dropped: 3, since 2026-03-01T12:00:00Z", "EVENTS_NOT_WRITTEN"] {
        assert!(outcome.notes.contains(named), "{named}: {outcome:?}");
    }
    let json = output_of(&dut, &format!("events --object {FULL_DISK} -o json")).await;
    let listed: serde_json::Value = serde_json::from_str(&json).unwrap();
    let dropped = (&listed["dropped"], &listed["droppedSince"]);
    assert_eq!(dropped, (&3.into(), &"2026-03-01T12:00:00Z".into()));
}

#[tokio::test]
async fn ages_are_by_the_clock_of_the_dpu() {
    let dut = Dut::start().await;
    for (line, age) in
        [("events", "5m0s"), ("audit", "5m0s"), ("get hosts", "1h5m"), ("status", "1h5m")]
    {
        let output = output_of(&dut, line).await;
        assert!(output.split_whitespace().any(|word| word == age), "{line}: {output}");
    }
}

#[tokio::test]
async fn audit_shows_who_changed_what_and_why() {
    let dut = Dut::start().await;
    let table = output_of(&dut, "audit --since 1h --object blue --operator alice").await;
    let row = table.lines().nth(1).unwrap();
    let shown = ["operator/alice", "ApplyNetwork", "network/blue", "mtu 1500 -> 1400", "ticket 7"];
    assert!(shown.iter().all(|cell| row.contains(cell)), "{table}");
    let asked = dut.asked().pop().unwrap();
    let filter = "within_s: 3600, object: \"blue\", operator: \"alice\"";
    assert!(asked.contains(filter), "{asked}");
}

#[tokio::test]
async fn reason_of_a_change_reaches_the_service() {
    let dut = Dut::start().await;
    dut.dpuctl("rename network blue azure --reason tidy").await;
    assert!(dut.asked().pop().unwrap().contains("reason: \"tidy\""));
    dut.dpuctl("clear-quarantine pf0vf3 --reason tested").await;
    assert!(dut.asked().pop().unwrap().contains("reason: \"tested\""));
}

/// The service ends the stream after each event. After the last event it refuses the operator.
#[tokio::test]
async fn followed_events_continue_across_connections() {
    let dut = Dut::start().await;
    let outcome = dut.dpuctl("events --follow -o json").await;
    let sequence = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event["sequence"].as_u64().unwrap()
    };
    let printed: Vec<_> = outcome.output.lines().map(sequence).collect();
    assert_eq!(printed, [1, 2, 3]);
    assert_eq!(outcome.code, 1);
    assert!(outcome.notes.contains("\ncode: NOT_AUTHORISED\n"), "{outcome:?}");
}

#[tokio::test]
async fn followed_events_are_lines() {
    let dut = Dut::start().await;
    let first = async |line: &str| {
        let output = dut.dpuctl(line).await.output;
        output.lines().next().unwrap().to_owned()
    };
    let line =
        |id: &str| format!("2026-03-01T12:00:00Z  Normal   AttachmentReserved  {id}  for web/shop");
    assert_eq!(first("events --follow").await, line("0190aaaa-bbbb"));
    assert_eq!(first("events --follow -o wide").await, line(ID));
}

#[tokio::test]
async fn the_busiest_attachment_is_on_top() {
    let dut = Dut::start().await;
    assert_eq!(
        output_of(&dut, "top --once --interval 1").await,
        "\
ATTACHMENT      POD        NETWORK   VF       SENT/S    RECEIVED/S   GUARD DROPS   ALLOW DROPS   LIMIT DROPS   HARDWARE
0190aaaa-bbbb   web/shop   blue      pf0vf3   1.23 MB   2.00 kB      5             3             6             yes
0190aaaa-aaaa   -          blue      pf0vf3   0 B       0 B          0             0             0             no
"
    );
    let line = "top --once --interval 1 --lines 1 -o wide --network blue --host node-1";
    let wide = output_of(&dut, line).await;
    let busiest: Vec<_> = wide.lines().skip(1).flat_map(str::split_whitespace).collect();
    assert_eq!(busiest[busiest.len() - 3..], ["node-1", "1000", "20"]);
    let question = "alice ListTrafficRequest { network: \"blue\", host: \"node-1\" }";
    assert_eq!(dut.asked()[2..], [question, question]);
    let outcome = dut.dpuctl("top --once --interval 1 --network empty").await;
    let expected = Outcome { code: 0, output: String::new(), notes: "No attachments.\n".into() };
    assert_eq!(outcome, expected);
}

#[tokio::test]
async fn top_prints_counters_of_each_sample() {
    let dut = Dut::start().await;
    let json = output_of(&dut, "top --once -o json").await;
    let look: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(look["time"], "2026-03-01T12:00:00.0Z");
    assert_eq!(look["attachments"][1]["counters"]["sentBytes"], 700);
    for form in ["json", "yaml"] {
        let outcome = dut.dpuctl(&format!("top --once --lines 1 -o {form}")).await;
        assert_eq!((outcome.code, &*outcome.output), (2, ""));
        assert!(outcome.notes.contains("--lines is for tables"), "{}", outcome.notes);
    }
    let yaml = output_of(&dut, "top --once -o yaml").await;
    assert!(yaml.starts_with("---\ntime: 2026-03-01T12:00:00.5Z\n"), "{yaml}");
    let sent = dut.first_lines("top --interval 1 -o json", 2).await.into_iter().map(|line| {
        let look: serde_json::Value = serde_json::from_str(&line).unwrap();
        look["attachments"][1]["counters"]["sentPackets"].clone()
    });
    assert_eq!(sent.collect::<Vec<_>>(), [1007, 1507]);
}

#[tokio::test]
async fn phases_have_their_share() {
    let dut = Dut::start().await;
    assert_eq!(
        output_of(&dut, "top --phases --once --interval 1").await,
        "\
OPERATION   PHASE     RATE     P50       P99       SHARE
attach      journal   4.00/s   3.00 ms   3.98 ms   75%
attach      total     4.00/s   3.00 ms   3.98 ms   100%
"
    );
    assert_eq!(dut.asked(), ["alice ListPhasesRequest"; 2]);
    let wide = output_of(&dut, "top --phases --once --interval 1 -o wide").await;
    assert!(wide.lines().nth(1).unwrap().ends_with("   2       3.00 ms"), "{wide}");
    let json = output_of(&dut, "top --phases --once -o json").await;
    let look: serde_json::Value = serde_json::from_str(&json).unwrap();
    let expected = serde_json::json!({
        "operation": "attach", "phase": "journal", "count": 8, "sumNs": 24_000_000,
        "buckets": [{ "upperBoundNs": 2_000_000, "count": 0 }, { "upperBoundNs": 4_000_000, "count": 8 }],
    });
    assert_eq!(look["phases"][0], expected);
    let yaml = output_of(&dut, "top --phases --once -o yaml").await;
    assert!(yaml.starts_with("---\ntime: 2026-03-01T12:00:02.5Z\nphases:\n"), "{yaml}");
    let outcome = dut.dpuctl("top --phases --network blue").await;
    assert_eq!((outcome.code, &*outcome.output), (2, ""));
}

#[tokio::test]
async fn missing_call_of_older_service_is_reported() {
    let outcome = Dut::start().await.dpuctl("add subnet ancient 10.9.0.0/16").await;
    assert_eq!((outcome.code, &*outcome.output), (1, ""));
    let shown = "\ncode: UNSUPPORTED\nadvice: upgrade the service\n";
    assert!(outcome.notes.ends_with(shown), "{outcome:?}");
}

#[tokio::test]
async fn empty_lists_say_so_beside_the_output() {
    let dut = Dut::start().await;
    let outcome = dut.dpuctl("get attachments --network empty").await;
    let expected = Outcome { code: 0, output: String::new(), notes: "No attachments.\n".into() };
    assert_eq!(outcome, expected);
    let json = output_of(&dut, "get attachments --network empty -o json").await;
    assert_eq!(json, "{\n  \"attachments\": []\n}\n");
}

#[tokio::test]
async fn a_refusal_tells_reason_code_and_advice() {
    let dut = Dut::start().await;
    let outcome = dut.dpuctl("delete network blue").await;
    assert_eq!(outcome.code, 1);
    let advice = Reason::NetworkInUse.advice();
    assert!(outcome.notes.starts_with("error: 3 attachments "), "{outcome:?}");
    let rest = format!(" network blue\ncode: NETWORK_IN_USE\nadvice: {advice}\n");
    assert!(outcome.notes.ends_with(&rest), "{outcome:?}");
    assert_eq!(output_of(&dut, "delete network blue --force").await, "network/blue deleted\n");
}

#[tokio::test]
async fn networks_are_applied_from_files_and_standard_input() {
    let dut = Dut::start().await;
    let path = dut.folder.path().join("networks.yaml");
    fs::write(&path, "name: blue\nvlan: 7\n---\nname: red\n").unwrap();
    let applied = output_of(&dut, &format!("apply -f {}", path.display())).await;
    assert_eq!(applied, "network/blue created\nnetwork/red created\n");
    let asked = dut.asked();
    assert!(asked[0].starts_with("alice ApplyNetworkRequest") && asked[0].contains("vlan: 7"));

    let outcome = dut.dpuctl_with_input("apply -f - --dry-run", r#"{"name": "blue"}"#).await;
    assert_eq!(outcome.output, "network/blue created (dry run)\n");
    assert!(dut.asked()[0].contains("dry_run: true"));

    let printed = "networks: [{network: {name: a}, origin: api}, {network: {name: b}, origin: configuration}]";
    let outcome = dut.dpuctl_with_input("apply -f -", printed).await;
    assert_eq!(outcome.output, "network/a created\n");
    assert!(outcome.notes.starts_with("network/b skipped: "), "{outcome:?}");
}

#[tokio::test]
async fn conflicting_apply_shows_the_difference() {
    let dut = Dut::start().await;
    let printed =
        "networks: [{network: {name: green, vlan: 9}, origin: api, resourceVersion: old}]";
    let outcome = dut.dpuctl_with_input("apply -f -", printed).await;
    assert_eq!((outcome.code, &*outcome.output), (1, ""), "{outcome:?}");
    let lines: Vec<_> = outcome.notes.lines().collect();
    for line in ["--- in force", "+++ yours", "-vlan: 7", "+vlan: 9", "code: NETWORK_CONFLICT"] {
        assert!(lines.contains(&line), "{line}: {lines:?}");
    }
    let asked = dut.asked();
    assert!(asked[0].contains("resource_version: \"old\""), "{asked:?}");

    let forced = dut.dpuctl_with_input("apply -f - --force-conflicts", printed).await;
    assert_eq!((forced.code, &*forced.output), (0, "network/green created\n"));
    assert!(dut.asked()[0].contains("resource_version: \"\""));
}

#[tokio::test]
async fn edited_network_is_applied_by_its_version() {
    let dut = Dut::start().await;
    let line = "edit network green --reason tidy";
    let edited = dut.dpuctl_in_editor(line, "sed -i 's/vlan: 7/vlan: 9/'").await;
    assert_eq!((edited.code, &*edited.output), (0, "network/green created\n"), "{edited:?}");
    let asked = dut.asked();
    assert!(asked[0].contains("vlan: 9") && asked[0].contains("resource_version: \"new\""));
    assert!(asked[0].contains("reason: \"tidy\""), "{asked:?}");
}

#[tokio::test]
async fn edits_that_say_nothing_change_nothing() {
    let dut = Dut::start().await;
    for (editor, code) in [("true", 1), ("false", 2), ("sed -i 's/name: green/name: azure/'", 2)] {
        let outcome = dut.dpuctl_in_editor("edit network green", editor).await;
        assert_eq!((outcome.code, &*outcome.output), (code, ""), "{editor}: {outcome:?}");
    }
    let fixed = dut.dpuctl_in_editor("edit network fixed", "true").await;
    assert_eq!(fixed.code, 2, "{fixed:?}");
    assert_eq!(dut.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn refused_edit_stays_in_its_file() {
    let dut = Dut::start().await;
    let outcome = dut.dpuctl_in_editor("edit network green", "sed -i 's/vlan:/vlam:/'").await;
    assert_eq!(outcome.code, 2);
    let kept = outcome.notes.lines().find_map(|line| line.strip_prefix("your changes are in "));
    let kept = kept.unwrap_or_else(|| panic!("{outcome:?}"));
    assert!(fs::read_to_string(kept).unwrap().contains("vlam: 7"));
}

#[tokio::test]
async fn editors_must_leave_a_file() {
    let dut = Dut::start().await;
    for editor in ["rm", "f() { rm $1 && mkfifo $1; }; f"] {
        let outcome = dut.dpuctl_in_editor("edit network green", editor).await;
        assert_eq!((outcome.code, &*outcome.output), (2, ""), "{editor}: {outcome:?}");
        assert!(outcome.notes.contains("\nadvice: save "), "{editor}: {outcome:?}");
        assert!(!outcome.notes.contains("your changes"), "{editor}: {outcome:?}");
    }
    assert_eq!(dut.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn network_is_renamed() {
    let dut = Dut::start().await;
    let renamed = output_of(&dut, "rename network blue azure").await;
    assert_eq!(renamed, "network/blue renamed to azure\n");
    let asked = dut.asked().remove(0);
    assert!(asked.contains("name: \"blue\", new_name: \"azure\""), "{asked}");
}

#[tokio::test]
async fn subnets_are_added_and_deleted_one_by_one() {
    let dut = Dut::start().await;
    let add = "add subnet blue 10.9.0.0/16 --gateway 10.9.0.1 --exclude 10.9.1.0/24 --exclude 10.9.2.0/24";
    assert_eq!(output_of(&dut, add).await, "network/blue changed\n");
    let asked = dut.asked();
    for shown in [
        "alice ChangeSubnetsRequest",
        "\"blue\"",
        "\"10.9.0.0/16\"",
        "\"10.9.0.1\"",
        "[\"10.9.1.0/24\", \"10.9.2.0/24\"]",
        "remove: []",
    ] {
        assert!(asked[0].contains(shown), "{shown}: {asked:?}");
    }
    assert_eq!(output_of(&dut, "delete subnet blue fd00::/64").await, "network/blue changed\n");
    let asked = dut.asked();
    assert!(asked[0].contains("add: [], remove: [\"fd00::/64\"]"), "{asked:?}");
    let again = output_of(&dut, "delete subnet settled fd00::/64").await;
    assert_eq!(again, "network/settled unchanged\n");
}

#[tokio::test]
async fn a_malformed_file_changes_nothing() {
    let dut = Dut::start().await;
    let outcome =
        dut.dpuctl_with_input("apply -f -", "name: blue\n---\nname: red\nvlam: 1\n").await;
    assert_eq!(outcome.code, 2);
    assert_eq!(outcome.notes, "error: -: document 2: unknown key `vlam`: did you mean `vlan`?\n");
    assert_eq!(dut.asked(), Vec::<String>::new());

    let outcome = dut.dpuctl("apply -f /nonexistent").await;
    assert_eq!(outcome.code, 2);
    assert!(outcome.notes.starts_with("error: cannot read /nonexistent: No such file"));
}

#[tokio::test]
async fn a_release_is_confirmed() {
    let dut = Dut::start().await;
    let outcome = dut.dpuctl_with_input("release 0190 --reason test", "y\n").await;
    assert_eq!(outcome.code, 2, "no terminal: {outcome:?}");
    assert!(!dut.asked().iter().any(|line| line.contains("Release")));

    let output = output_of(&dut, "release 0190 --reason test --yes").await;
    assert_eq!(output, format!("attachment/{ID} releasing\n"));
    let asked = dut.asked().pop().unwrap();
    assert!(asked.contains(ID) && asked.contains("reason: \"test\""), "{asked}");
}

#[tokio::test]
async fn release_of_removed_host_is_confirmed() {
    let dut = Dut::start().await;
    let outcome = dut.dpuctl_with_input("release --host node-1 --reason gone", "y\n").await;
    assert_eq!(outcome.code, 2, "no terminal: {outcome:?}");
    assert!(!dut.asked().iter().any(|line| line.contains("Release")));

    let output = output_of(&dut, "release --host node-1 --reason gone --yes").await;
    let second = ID.replace("0190aaaa", "0190cccc");
    assert_eq!(output, format!("attachment/{ID} released\nattachment/{second} released\n"));
    let asked = dut.asked().pop().unwrap();
    assert!(asked.contains(&second) && asked.contains("reason: \"gone\""), "{asked}");
}

#[tokio::test]
async fn release_of_served_host_is_refused() {
    let dut = Dut::start().await;
    let outcome = dut.dpuctl("release --host served --reason gone --yes").await;
    assert_eq!(outcome.code, 2, "{outcome:?}");
    assert!(outcome.notes.contains("remove its [[host]]"), "{outcome:?}");
    assert!(!dut.asked().iter().any(|line| line.contains("Release")));
}

#[tokio::test]
async fn a_vf_is_cleared_by_name() {
    let dut = Dut::start().await;
    assert_eq!(output_of(&dut, "clear-quarantine c1pf0vf3").await, "vf/c1pf0vf3 cleared\n");
    assert!(dut.asked()[0].contains("controller: 1, pf: 0, vf: 3"));
}

#[tokio::test]
async fn connection_errors_have_own_exit_codes() {
    let dut = Dut::start().await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let outcome = dut.dpuctl(&format!("status --endpoint {unused}")).await;
    assert_eq!(outcome.code, 3, "{outcome:?}");
    assert!(outcome.notes.contains(&format!(" {unused}: Connection refused")), "{outcome:?}");
    assert!(outcome.notes.contains("\ncode: DPU_UNREACHABLE\nadvice: check "), "{outcome:?}");

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = silent.local_addr().map(|address| (silent, address)).unwrap();
    let outcome = dut.dpuctl(&format!("status --timeout 1 --endpoint {}", silent.1)).await;
    assert_eq!(outcome.code, 3, "{outcome:?}");
    assert!(outcome.notes.contains("within 1s"), "{outcome:?}");

    let outcome = dut.dpuctl("status --dpu dpu-2").await;
    assert_eq!(outcome.code, 4, "{outcome:?}");
    assert!(outcome.notes.contains("but spiffe://test.local/dpu/dpu-2 was expected"));
    let (_, advice) = outcome.notes.split_once("\ncode: CERTIFICATE_REFUSED\nadvice: ").unwrap();
    assert!(advice.contains("`dpu`"), "{outcome:?}");

    dut.configure("host");
    let outcome = dut.dpuctl("status").await;
    assert_eq!(outcome.code, 4, "{outcome:?}");
    assert!(outcome.notes.contains("operator or viewer"), "{outcome:?}");
    let (_, advice) = outcome.notes.split_once("\nadvice: ").unwrap();
    assert!(advice.contains("`tls.certificate`"), "{outcome:?}");

    dut.configure("missing");
    let outcome = dut.dpuctl("status").await;
    assert_eq!(outcome.code, 4, "{outcome:?}");
    let shown = "\ncode: CERTIFICATE_REFUSED\nadvice: correct the path";
    assert!(outcome.notes.contains(shown), "{outcome:?}");
}

/// An address whose first connection ends at once, as while a service starts. Later connections reach the service.
async fn late_endpoint(dut: &Dut) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let service = dut.address.clone();
    tokio::spawn(async move {
        drop(listener.accept().await.unwrap());
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut service = TcpStream::connect(&service).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut service).await });
        }
    });
    endpoint
}

#[tokio::test]
async fn status_waits_for_a_service_that_starts() {
    let dut = Dut::start().await;
    let endpoint = late_endpoint(&dut).await;
    let line = format!("status --wait Ready --timeout 30 --endpoint {endpoint}");
    let outcome = dut.dpuctl(&line).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.output.contains("dpu-1"), "{outcome:?}");
}

#[tokio::test]
async fn status_reports_the_last_error_after_waiting() {
    let dut = Dut::start().await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let away = dut.dpuctl(&format!("status --wait Ready --timeout 1 --endpoint {unused}")).await;
    assert_eq!(away.code, 3, "{away:?}");
    assert!(away.notes.contains("code: DPU_UNREACHABLE"), "{away:?}");
    let unknown = dut.dpuctl("status --wait Offloaded --timeout 600").await;
    assert_eq!(unknown.code, 1, "a DPU without cards will never have it: {unknown:?}");
    let refused = dut.dpuctl("status --wait Ready --timeout 600 --dpu dpu-2").await;
    assert_eq!(refused.code, 4, "time does not repair a certificate: {refused:?}");
}

#[tokio::test]
async fn configuration_mistakes_have_their_place() {
    let dut = Dut::start().await;
    fs::write(dut.config(), "endpiont = 'x'\n").unwrap();
    let outcome = dut.dpuctl("status").await;
    assert_eq!(outcome.code, 2);
    assert_eq!(
        outcome.notes,
        format!(
            "error: {}:1:1: unknown key `endpiont`: did you mean `endpoint`?\n",
            dut.config().display()
        )
    );
    let empty = tempfile::tempdir().unwrap();
    let outcome = run("status", empty.path(), "").await;
    assert_eq!(outcome.code, 2);
    assert!(outcome.notes.contains("dpuctl.toml"), "{outcome:?}");
}

#[tokio::test]
async fn codes_are_explained_without_a_configuration() {
    let empty = tempfile::tempdir().unwrap();
    for (code, shown) in
        [("VFS_EXHAUSTED", "102"), ("103", "ADDRESSES_EXHAUSTED"), ("11", "DRAINING")]
    {
        let outcome = run(&format!("explain {code}"), empty.path(), "").await;
        assert_eq!((outcome.code, &*outcome.notes), (0, ""), "{code}");
        assert!(outcome.output.contains(shown), "{code}: {}", outcome.output);
        assert!(outcome.output.contains("\nRemedy: "), "{code}: {}", outcome.output);
    }
    let outcome = run("explain VFS_EXAUSTED", empty.path(), "").await;
    assert!(outcome.code == 1 && outcome.notes.contains("VFS_EXHAUSTED"), "{outcome:?}");
}

#[tokio::test]
async fn version_and_completions_need_no_configuration() {
    let empty = tempfile::tempdir().unwrap();
    let outcome = run("--version", empty.path(), "").await;
    assert_eq!(outcome.output, concat!("dpuctl ", env!("CARGO_PKG_VERSION"), "\n"));
    for shell in ["bash", "zsh", "fish"] {
        let outcome = run(&format!("completions {shell}"), empty.path(), "").await;
        assert!(outcome.code == 0 && outcome.output.contains("clear-quarantine"), "{shell}");
    }
    assert_eq!(run("get", empty.path(), "").await.code, 2);
}

#[tokio::test]
async fn doctor_reports_differences_and_repairs() {
    let dut = Dut::start().await;
    let Outcome { code, output, notes } = dut.dpuctl("doctor").await;
    assert_eq!(
        output,
        "\
DPU:           dpu-1
Checked:       1 of 1 hosts, 1 VFs; -v lists them

VF_DIFFERS  node-1: pf0vf3: its name is lost0 instead of p0v3
    do: run `dpuctl doctor --fix`
"
    );
    assert!(code == 1 && notes.ends_with("problems found: 1\n"), "{code}: {notes}");
    let verbose = dut.dpuctl("doctor -v").await.output;
    assert!(
        verbose.contains("\nHOST     STATE       AGENT   NOT EXAMINED\nnode-1   Connected"),
        "{verbose}"
    );
    assert!(verbose.contains("\npf0vf3   node-1   Host    lost0    Free "), "{verbose}");
    let repaired = output_of(&dut, "doctor --fix --reason tidy --timeout 30").await;
    assert!(repaired.contains("VF_DIFFERS  repaired: node-1: pf0vf3"), "{repaired}");
    assert!(!repaired.contains("do:"), "{repaired}");
    let look = "alice ExamineRequest { wait_ms: 1666 }";
    let repair = "alice RepairRequest { wait_ms: 5000, reason: \"tidy\" }";
    let asked = [look, look, repair].into_iter().flat_map(|call| [call, "alice GetDpuRequest"]);
    let asked: Vec<_> = asked.collect();
    assert_eq!(dut.asked(), asked);
    let json = dut.dpuctl("doctor -o json").await.output;
    assert!(json.contains("\"FINDING_STATE_FOUND\"") && json.contains("\"code\": \"VF_DIFFERS\""));
}
