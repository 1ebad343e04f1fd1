//! `dpuctl explain`: explains a code without a DPU and without a configuration.

use bootstrap::nearest;
use offload_proto::{
    ConditionReason, FindingCode, Reason,
    event::{EventKind, Severity},
    v1::ConditionType,
};

use crate::{console::Console, description::Description, error::CallError, table::table};

/// The document with a section for each code.
const REASONS: &str = include_str!("../../docs/ERRORS.md");
const FINDINGS: &str = include_str!("../../docs/TROUBLESHOOTING.md");
/// The document with a row for each condition, which explains when the condition changes.
const CONDITIONS: &str = include_str!("../../docs/CONDITIONS.md");

/// What a number of the CNI specification (section "Error") means if the plugin uses it, and what to do.
const fn specified(number: u32) -> Option<(&'static str, &'static str)> {
    Some(match number {
        1 => (
            "Incompatible CNI version.",
            "set `cniVersion` to a version that `details` of the error lists",
        ),
        2 => (
            "Unsupported field in the network configuration; the message has its key and value.",
            "do what `details` of the error say, or remove the field",
        ),
        4 => (
            "Invalid environment variables, such as CNI_COMMAND or CNI_CONTAINERID.",
            "correct the variable that the message names; there are no `details`",
        ),
        5 => (
            "I/O failure, such as standard input that can't be read.",
            "see the message for what can't be read, and call again; there are no `details`",
        ),
        6 => (
            "Content that can't be decoded.",
            "pass one JSON object on standard input; there are no `details`",
        ),
        7 => (
            "Invalid network configuration.",
            "correct what the message names; pass the configuration of one plugin, and not a list; there are no `details`",
        ),
        8 => (
            "CNI_NETNS is the network namespace that the plugin itself runs in.",
            "name the container's network namespace, or set CNI_NETNS_OVERRIDE=1; there are no `details`",
        ),
        11 => (
            "Try again later: the failure passes by itself.",
            "wait: the runtime tries again; `details` of the error begin with one of the codes below",
        ),
        50 => ("STATUS: the plugin can't serve ADD.", STATUS_REMEDY),
        51 => (
            "STATUS: the plugin can't serve ADD, and running containers may lack their network.",
            STATUS_REMEDY,
        ),
        _ => return None,
    })
}

/// What to do about a failed STATUS. docs/OPERATIONS.md lists the codes under "What NotReady costs".
const STATUS_REMEDY: &str = "explain the code with which `details` of the error begin: AGENT_UNREACHABLE, \
                             DPU_UNREACHABLE, CERTIFICATE_REFUSED, HOST_UNKNOWN, JOURNAL_UNAVAILABLE, \
                             FABRIC_UNAVAILABLE, DRAINING, or one of a network that can't be served";

/// A code in the form in which the program prints it.
enum Code {
    Reason(Reason),
    FindingCode(FindingCode),
    Condition(ConditionReason),
    Type(ConditionType),
    Event(EventKind),
}

/// Explains `code`, which is a stable code or a CNI number. Lists all codes without one.
pub(crate) fn explain(code: Option<&str>, console: &mut Console<'_>) -> Result<(), CallError> {
    let Some(code) = code else { return console.print(&list()) };
    let explained = match code.parse() {
        Ok(number) => of_number(number),
        Err(_) => of_name(code),
    };
    if explained.is_empty() {
        return Err(CallError::Unexplained { code: code.to_owned(), nearest: nearest_to(code) });
    }
    console.print(&explained.join("\n"))
}

fn of_number(number: u32) -> Vec<String> {
    let reasons = Reason::ALL.iter().filter(|reason| reason.cni_code() == number);
    let specified = specified(number).into_iter().map(|(meaning, remedy)| {
        let mut text = Description::default();
        text.field("CNI", &format!("{number}, of the CNI specification"));
        text.field("Means", meaning);
        text.field("Remedy", remedy);
        text.finish()
    });
    specified.chain(reasons.map(|reason| Code::Reason(*reason).explanation())).collect()
}

fn of_name(name: &str) -> Vec<String> {
    let is_it = |code: &Code| code.name().eq_ignore_ascii_case(&name.replace('-', "_"));
    codes().filter(is_it).map(|code| code.explanation()).collect()
}

fn nearest_to(name: &str) -> Option<&'static str> {
    nearest(name, &codes().map(|code| code.name()).collect::<Vec<_>>())
}

fn codes() -> impl Iterator<Item = Code> {
    let findings = FindingCode::ALL.iter().copied().map(Code::FindingCode);
    let conditions = ConditionReason::ALL.iter().copied().map(Code::Condition);
    let types = ConditionType::ALL.into_iter().map(Code::Type);
    let events = EventKind::ALL.iter().copied().map(Code::Event);
    let reasons = Reason::ALL.iter().copied().map(Code::Reason);
    reasons.chain(findings).chain(conditions).chain(types).chain(events)
}

fn list() -> String {
    table(&["CODE", "CNI", "MEANS"], codes().map(|code| code.row()))
}

impl Code {
    fn name(&self) -> &'static str {
        match self {
            Self::Reason(reason) => reason.as_str(),
            Self::FindingCode(finding) => finding.as_str(),
            Self::Condition(reason) => reason.as_str(),
            Self::Type(kind) => kind.name(),
            Self::Event(kind) => kind.as_str(),
        }
    }

    fn meaning(&self) -> &'static str {
        match self {
            Self::Reason(reason) => reason.meaning(),
            Self::FindingCode(finding) => finding.meaning(),
            Self::Condition(reason) => reason.meaning(),
            Self::Type(kind) => first_line(CONDITIONS, kind.name()),
            Self::Event(kind) => kind.meaning(),
        }
    }

    fn row(&self) -> Vec<String> {
        let cni = match self {
            Self::Reason(reason) => reason.cni_code().to_string(),
            Self::FindingCode(_) | Self::Condition(_) | Self::Type(_) | Self::Event(_) => {
                "-".into()
            }
        };
        vec![self.name().into(), cni, without_links(self.meaning())]
    }

    fn explanation(&self) -> String {
        let mut text = Description::default();
        text.field("Code", self.name());
        match self {
            Self::Reason(reason) => {
                text.field("CNI", &number(*reason));
                text.field("gRPC", &format!("{:?}", reason.grpc_code()));
                self.remedy(&mut text, reason.advice(), REASONS);
            }
            Self::FindingCode(finding) => {
                text.field("Printed by", "dpuctl doctor");
                self.remedy(&mut text, finding.advice(), FINDINGS);
            }
            Self::Condition(reason) => {
                text.field("Printed by", "dpuctl status");
                text.field("Condition", reason.condition().name());
                text.field("Means", reason.meaning());
                turns(&mut text, *reason);
            }
            Self::Type(kind) => {
                text.field("Printed by", "dpuctl status");
                text.field("Means", &without_links(self.meaning()));
                let reasons = ConditionReason::ALL.iter().filter(|it| it.condition() == *kind);
                text.list("Reasons", reasons.map(|it| it.as_str().to_owned()));
            }
            Self::Event(kind) => {
                text.field("Printed by", "dpuctl events");
                text.field("Type", &format!("{:?}", kind.severity()));
                text.field("Means", kind.meaning());
                if kind.severity() == Severity::Warning {
                    let remedy =
                        format!("see the messages: `dpuctl events --type {}`", self.name());
                    text.field("Remedy", &remedy);
                }
            }
        }
        text.finish()
    }

    fn remedy(&self, text: &mut Description, advice: &str, document: &str) {
        text.field("Means", self.meaning());
        text.field("Remedy", advice);
        text.block("", &section(document, self.name()));
    }
}

/// When the condition changes, from its row in the document.
fn turns(text: &mut Description, reason: ConditionReason) {
    let row = format!("\n| `{reason}` |");
    let cells = CONDITIONS.split_once(&row).and_then(|(_, after)| after.lines().next());
    let cells = without_links(cells.unwrap_or_default());
    let labels =
        ["Affects pods", "False if", "True again if", "False after", "True after", "Remedy"];
    for (label, cell) in labels.iter().zip(cells.split('|')) {
        text.field(label, cell.trim());
    }
}

fn number(reason: Reason) -> String {
    let number = reason.cni_code();
    if reason.is_passing() {
        format!("{number}: the runtime tries again")
    } else {
        number.to_string()
    }
}

/// The document's section on a code, as plain text.
fn section(document: &str, code: &str) -> String {
    let (_, after) = document.split_once(&format!("\n### {code}\n")).unwrap_or_default();
    let end = after.find("\n#").unwrap_or(after.len());
    format!("{}\n", without_links(after[..end].trim()))
}

/// The first line of the document's section on a code.
fn first_line(document: &'static str, code: &str) -> &'static str {
    let (_, after) = document.split_once(&format!("\n### {code}\n")).unwrap_or_default();
    after.trim_start().lines().next().unwrap_or_default()
}

/// Replaces each link by its label.
fn without_links(mut text: &str) -> String {
    let mut plain = String::new();
    while let Some((before, target)) = text.split_once("](")
        && let Some((start, label)) = before.rsplit_once('[')
        && let Some((_, rest)) = target.split_once(')')
    {
        plain.extend([start, label]);
        text = rest;
    }
    plain + text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_explained() {
        let have_sections = |code: &Code| matches!(code, Code::Reason(_) | Code::FindingCode(_));
        for code in codes().filter(have_sections) {
            let explained = of_name(code.name()).concat();
            let (fields, details) = explained.split_once("\n\n").unwrap();
            for part in ["Means: ", "Remedy: ", code.meaning()] {
                assert!(fields.contains(part), "{part}: {explained}");
            }
            assert!(details.trim().len() > 20 && !details.contains("]("), "{explained}");
        }
    }

    #[test]
    fn each_reason_of_a_condition_is_explained() {
        for reason in ConditionReason::ALL {
            let explained = Code::Condition(*reason).explanation();
            let parts = [reason.condition().name(), reason.meaning(), "False if: ", "Remedy: "];
            assert!(parts.iter().all(|part| explained.contains(part)), "{explained}");
            assert!(!explained.contains("](") && !explained.contains('|'), "{explained}");
        }
        let explained = of_name("UPLINK_DOWN").concat();
        assert!(
            explained.contains("dpuctl doctor") && explained.contains("dpuctl status"),
            "{explained}"
        );
        let shown = of_name("RELEASE_STUCK").concat();
        assert!(CONDITIONS.contains(&shown), "the example in docs/CONDITIONS.md: {shown}");
    }

    #[test]
    fn each_type_of_condition_is_explained() {
        for kind in ConditionType::ALL {
            let explained = of_name(kind.name()).concat();
            assert!(explained.contains("Means: ") && explained.contains("Reasons:"), "{explained}");
            assert!(
                first_line(CONDITIONS, kind.name()).len() > 20 && !explained.contains("]("),
                "{explained}"
            );
        }
    }

    #[test]
    fn each_kind_of_event_is_explained() {
        for kind in EventKind::ALL {
            let explained = of_name(kind.as_str()).concat();
            assert!(
                explained.contains("dpuctl events") && explained.contains(kind.meaning()),
                "{explained}"
            );
        }
        assert!(of_name("ConditionFalse").concat().contains("--type ConditionFalse"));
    }

    #[test]
    fn numbers_of_cni_have_remedies() {
        for number in [1, 2, 4, 5, 6, 7, 8, 11, 50, 51] {
            assert!(of_number(number)[0].contains("\nRemedy: "), "{number}");
        }
    }

    #[test]
    fn numbers_of_cni_are_explained() {
        let explained = of_number(103).concat();
        assert!(explained.starts_with("Code:          ADDRESSES_EXHAUSTED\n"), "{explained}");
        let passing = of_number(11);
        let all = Reason::ALL.iter().filter(|reason| reason.is_passing()).count();
        assert_eq!(passing.len(), all + 1);
        for reason in Reason::ALL {
            assert!(!of_number(reason.cni_code()).is_empty(), "{reason}");
        }
        assert!(of_number(3).is_empty());
        assert!(REASONS.contains(&explained), "the example in docs/ERRORS.md: {explained}");
    }

    #[test]
    fn codes_are_found_in_any_case() {
        assert_eq!(of_name("vfs-exhausted"), of_name("VFS_EXHAUSTED"));
        assert_eq!(nearest_to("VFS_EXAUSTED"), Some("VFS_EXHAUSTED"));
        assert!(of_name("NO_SUCH_CODE").is_empty());
    }

    #[test]
    fn the_list_has_all_codes() {
        assert_eq!(list().lines().count(), codes().count() + 1);
    }

    #[test]
    fn links_become_their_labels() {
        let text = "see [the page](A.md#b), `[[host]]`, and [it](C.md)";
        assert_eq!(without_links(text), "see the page, `[[host]]`, and it");
        assert_eq!(section("\n### A\nx\n\n### B\ny\n", "A"), "x\n");
    }
}
