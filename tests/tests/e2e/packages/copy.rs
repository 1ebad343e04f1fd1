//! A copy of this machine with its own root. Changes stay in memory.

/// Script that makes the copy the working directory, in its own mount namespace, and copies the files in its arguments
/// to its /made.
pub(crate) const COPY: &str = r#"
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/copy/root
mount -t tmpfs tmpfs /run/copy/root
for folder in etc opt usr var; do
    mkdir -p "/run/copy/$folder/upper" "/run/copy/$folder/scratch" "/run/copy/root/$folder"
    mount -t overlay -o "userxattr,lowerdir=/$folder,upperdir=/run/copy/$folder/upper,workdir=/run/copy/$folder/scratch" \
        overlay "/run/copy/root/$folder"
done
cd /run/copy/root
for folder in bin sbin lib lib64; do [ ! -L "/$folder" ] || ln -s "usr/$folder" "$folder"; done
mkdir dev proc root run srv sys tmp made before
# As a system that installs documentation.
rm -f etc/dpkg/dpkg.cfg.d/*
cp "$@" made
"#;
