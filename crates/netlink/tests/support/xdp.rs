//! An XDP program for `ip link set <link> xdpgeneric object <file> section xdp`, built without a compiler.

use std::path::PathBuf;

/// Offsets of names in [`NAMES`].
const PROGRAM: u32 = 1;
const XDP: u32 = 6;
const LICENSE: u32 = 10;
const STRINGS: u32 = 18;
const SYMBOLS: u32 = 26;
const NAMES: &[u8] = b"\0prog\0xdp\0license\0.strtab\0.symtab\0";
/// `r0 = XDP_DROP; exit`
const CODE: [u8; 16] = [0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
const HEADER_SIZE: u64 = 64;
const ENTRY_SIZE: u64 = 24;

/// Whether programs may be attached: only the machine's root may, not the root of a user namespace.
pub(crate) fn may_be_attached() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Writes an object file with a program that drops every frame. The folder's drop deletes it.
pub(crate) fn dropping_program() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drop.o");
    std::fs::write(&path, object()).unwrap();
    (folder, path)
}

/// An ELF relocatable for the BPF machine: the program, its symbol and its licence.
fn object() -> Vec<u8> {
    let symbol = [&[0; 24][..], &PROGRAM.to_le_bytes(), &[0x12, 0, 1, 0], &[0; 8], &[16], &[0; 7]];
    let mut contents = Vec::new();
    let mut headers = vec![0; 64];
    let mut add = |name: u32, kind: u32, flags: u64, bytes: &[u8], links: [u32; 2], entry: u64| {
        let offset = HEADER_SIZE + contents.len() as u64;
        contents.extend(bytes);
        contents.resize(contents.len().next_multiple_of(8), 0);
        headers.extend([name, kind].map(u32::to_le_bytes).concat());
        headers.extend([flags, 0, offset, bytes.len() as u64].map(u64::to_le_bytes).concat());
        headers.extend(links.map(u32::to_le_bytes).concat());
        headers.extend([8, entry].map(u64::to_le_bytes).concat());
    };
    add(XDP, 1, 6, &CODE, [0, 0], 0);
    add(LICENSE, 1, 3, b"GPL\0", [0, 0], 0);
    add(SYMBOLS, 2, 0, &symbol.concat(), [4, 1], ENTRY_SIZE);
    add(STRINGS, 3, 0, NAMES, [0, 0], 0);
    let headers_at = HEADER_SIZE + contents.len() as u64;
    [elf_header(headers_at), contents, headers].concat()
}

/// ELF header: 64 bits, little-endian, relocatable, BPF; five section headers, the last one for names.
fn elf_header(section_headers_at: u64) -> Vec<u8> {
    let identity = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0";
    let sizes: [u16; 6] = [64, 0, 0, 64, 5, 4];
    [
        &identity[..],
        &[1, 0, 247, 0, 1, 0, 0, 0],
        &[0; 16],
        &section_headers_at.to_le_bytes(),
        &[0; 4],
        &sizes.map(u16::to_le_bytes).concat(),
    ]
    .concat()
}
