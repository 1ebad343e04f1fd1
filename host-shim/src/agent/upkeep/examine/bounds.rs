//! Cuts an examination to what one message can hold, however much was found.

use std::mem;

use bootstrap::cut;
use offload_proto::{encoded_len, first_that_fit, v1::Examination};

/// Longest text of an answer, in bytes, but for the words that tell that it was cut.
const LONGEST_TEXT: usize = 1024;
/// What the message needs around an answer, in bytes.
const ENVELOPE: usize = 64;

/// Leaves out what a message of `limit` bytes has no room for, and counts it: findings get half of
/// the room if they need it, and VFs the rest, those of attachments first.
pub(super) fn fit(mut found: Examination, limit: usize) -> Examination {
    cut_texts(&mut found);
    let (mut vfs, findings) = (mem::take(&mut found.vfs), mem::take(&mut found.findings));
    vfs.sort_by_key(|vf| vf.attachment_id.is_empty());
    let room = limit.saturating_sub(encoded_len(&found) + ENVELOPE);
    let (findings, findings_left_out) = first_that_fit(findings, room / 2);
    found.findings = findings;
    let room = limit.saturating_sub(encoded_len(&found) + ENVELOPE);
    let (vfs, vfs_left_out) = first_that_fit(vfs, room);
    found.vfs = vfs;
    found.vfs_left_out = count(vfs_left_out);
    found.findings_left_out = count(findings_left_out);
    found
}

fn cut_texts(found: &mut Examination) {
    let findings = found.findings.iter_mut();
    let findings = findings.flat_map(|found| [&mut found.message, &mut found.why]);
    let repairs = found.repairs.iter_mut().map(|repair| &mut repair.message);
    for text in findings.chain(repairs).chain([&mut found.problem]) {
        *text = cut(mem::take(text), LONGEST_TEXT);
    }
}

fn count(number: usize) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use offload_proto::{
        FindingCode,
        v1::{ExaminedVf, Repair},
    };

    use super::*;

    const LIMIT: usize = 64 * 1024;

    #[test]
    fn few_findings_are_reported_in_full() {
        let found = Examination {
            vfs: vec![ExaminedVf { netdev: "p0v1".into(), ..ExaminedVf::default() }],
            findings: vec![FindingCode::VfDiffers.of("pf0vf1", "its MTU is 1400")],
            ..Examination::default()
        };
        assert_eq!(fit(found.clone(), LIMIT), found);
    }

    #[test]
    fn thousands_of_findings_fit_the_limit() {
        let vf = |number: usize| ExaminedVf {
            attachment_id: if number.is_multiple_of(1000) { "held".into() } else { String::new() },
            netns: "/run/netns/of-some-pod".into(),
            ..ExaminedVf::default()
        };
        let repair = Repair { message: "x".repeat(LIMIT), ..Repair::default() };
        let found = Examination {
            vfs: (0..5000).map(vf).collect(),
            findings: vec![FindingCode::VfDiffers.of("pf0vf1", "y".repeat(LIMIT)); 5000],
            repairs: vec![repair; 8],
            ..Examination::default()
        };
        let told = fit(found, LIMIT);
        assert!(encoded_len(&told) <= LIMIT, "{}", encoded_len(&told));
        let of = |told: usize, left_out: u32| told + usize::try_from(left_out).unwrap();
        assert_eq!(of(told.vfs.len(), told.vfs_left_out), 5000);
        assert_eq!(of(told.findings.len(), told.findings_left_out), 5000);
        assert!(told.vfs.len() > 100 && told.findings.len() > 10 && told.repairs.len() == 8);
        assert_eq!(told.vfs.iter().filter(|vf| vf.attachment_id == "held").count(), 5);
    }
}
