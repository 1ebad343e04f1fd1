//! Many pods at once.

use e2e::{
    Settings,
    scenarios::load::{as_many_pods_as_vfs_come_and_go, the_same_pod_is_attached_at_most_once},
};

#[test]
fn two_hundred_pods_come_and_go_by_sixteen_callers_at_once() {
    as_many_pods_as_vfs_come_and_go(&Settings::with_vfs(200));
}

#[test]
fn the_same_pod_added_and_deleted_by_many_callers_is_attached_at_most_once() {
    the_same_pod_is_attached_at_most_once(&Settings::default());
}
