//! Addresses: which are leased or refused, and cool-downs.

use std::time::Duration;

use model::AttachSpec;
use offload_proto::{Reason, v1::Pod};
use test_clock::within;

use crate::world::{World, configuration, live, network, requesting, settings, spec};

#[tokio::test]
async fn subnets_of_a_family_extend_each_other() {
    let mut configuration = configuration();
    configuration.networks = vec![network(
        "name = 'tiny'\ndefault = true\n[[subnets]]\ncidr = '10.9.0.0/31'\n\
         [[subnets]]\ncidr = '10.9.1.0/31'\n",
    )];
    let world = World::with(configuration, settings(), 8).await;
    let mut addresses = Vec::new();
    for number in 0..4 {
        let view = world.attached(&number.to_string()).await;
        addresses.extend(view.record.leases.iter().map(|lease| lease.address.to_string()));
    }
    assert_eq!(addresses, ["10.9.0.0/31", "10.9.0.1/31", "10.9.1.0/31", "10.9.1.1/31"]);
    let failure = world.attach(spec("more")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::AddressesExhausted);
    assert!(failure.message.contains("network tiny: 10.9.0.0/31"), "{failure}");
    world.check();
    assert_eq!(world.engine.operators().pools()[0].usage.in_use, 4);
}

fn asking_for(container: &str, addresses: &[&str]) -> AttachSpec {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    requesting(spec(container), |it| it.addresses = addresses)
}

#[tokio::test]
async fn requested_addresses_are_leased_or_refused_by_name() {
    let world = World::new().await;
    let view = world.attach(asking_for("a", &["10.1.0.77"])).await.unwrap();
    let leases: Vec<_> = view.record.leases.iter().map(|l| l.address.ip().to_string()).collect();
    assert_eq!(leases, ["10.1.0.77", "fd00:1::2"]);
    for (addresses, reason) in [
        (&["10.1.0.77"][..], Reason::AddressInUse),
        (&["10.1.0.1"], Reason::AddressNotAllowed),
        (&["10.2.0.1"], Reason::AddressNotAllowed),
        (&["10.1.0.5/16"], Reason::AddressNotAllowed),
        (&["10.1.0.5", "10.1.0.6"], Reason::InvalidRequest),
        (&["10.1.0.5", "10.1.0.6", "10.1.0.5"], Reason::InvalidRequest),
        (&["10.1.0.5", "10.1.0.5/16"], Reason::AddressNotAllowed),
    ] {
        assert_eq!(world.refused(asking_for("b", addresses)).await, reason, "{addresses:?}");
        world.check();
    }
    assert_eq!(world.engine.operators().pools()[0].usage.free, 3);
}

/// podman passes the address of a container twice when it reloads its network.
#[tokio::test]
async fn address_requested_twice_counts_once() {
    let world = World::new().await;
    let twice = ["10.1.0.77", "10.1.0.77/24", "fd00:1::77", "10.1.0.77", "fd00:1::77/64"];
    let asked = asking_for("a", &twice);
    let view = world.attach(asked.clone()).await.unwrap();
    let leases: Vec<_> = view.record.leases.iter().map(|l| l.address.to_string()).collect();
    assert_eq!(leases, ["10.1.0.77/24", "fd00:1::77/64"]);
    assert_eq!(world.attach(asked).await.unwrap().record, view.record);
    world.check();
    world.detach("a").await;
    world.check();
}

#[tokio::test]
async fn cooling_address_is_given_to_others_last() {
    let mut configuration = configuration();
    configuration.networks =
        vec![network("name = 'tiny'\ndefault = true\n[[subnets]]\ncidr = '10.9.0.0/29'\n")];
    let with_cool_down = dpu_service::attachments::Settings {
        address_cool_down: Duration::from_secs(600),
        ..settings()
    };
    let mut world = World::with(configuration, with_cool_down, 8).await;
    let first = world.attached("a").await.record.leases.clone();
    world.detach("a").await;
    world.restart().await;
    world.hello(&[]).await;
    assert_eq!(world.engine.networks().list()[0].subnets[0].cooling, 1);
    for container in ["b", "c", "d", "e", "f"] {
        assert_ne!(world.attached(container).await.record.leases, first);
    }
    let attached = async {
        loop {
            match world.attach(spec("g")).await {
                Ok(view) => return view,
                Err(refused) => assert_eq!(refused.reason, Reason::AddressesExhausted),
            }
            tokio::task::yield_now().await;
        }
    };
    let view = within(Duration::from_secs(60), attached).await.expect("the subnet stays used up");
    assert_eq!(view.record.leases, first);
    world.check();
}

/// A world with a cool-down.
async fn with_cool_down() -> World {
    let address_cool_down = Duration::from_secs(600);
    let with_cool_down = dpu_service::attachments::Settings { address_cool_down, ..settings() };
    World::with(configuration(), with_cool_down, 4).await
}

#[tokio::test]
async fn a_cooling_address_is_free_for_others_afterwards() {
    let address_cool_down = Duration::from_millis(200);
    let settings = dpu_service::attachments::Settings { address_cool_down, ..settings() };
    let world = World::with(configuration(), settings, 4).await;
    world.attach(asking_for("first", &["10.1.0.77"])).await.unwrap();
    world.detach("first").await;
    let attached = async {
        while let Err(refused) = world.attach(asking_for("other", &["10.1.0.77"])).await {
            assert_eq!(refused.reason, Reason::AddressInUse);
            tokio::task::yield_now().await;
        }
    };
    within(Duration::from_secs(20), attached).await.expect("the cool-down does not end");
    world.check();
}

#[tokio::test]
async fn cooling_address_is_leased_to_its_former_owner() {
    const ADDRESS: &str = "10.1.0.77";
    let mut world = with_cool_down().await;
    let pod = |name: &str| Pod { namespace: "shop".into(), name: name.into(), uid: name.into() };
    let mac = Some("02:5e:00:00:00:01".parse().unwrap());
    let first = AttachSpec {
        pod: pod("cart-0"),
        ..requesting(asking_for("first", &[ADDRESS]), |it| it.mac = mac)
    };
    let same_container = asking_for("first", &[ADDRESS]);
    let same_pod = AttachSpec { pod: pod("cart-0"), ..asking_for("second", &[ADDRESS]) };
    let same_mac = requesting(asking_for("third", &[ADDRESS]), |it| it.mac = mac);
    let others = [
        AttachSpec { pod: pod("cart-1"), ..asking_for("other", &[ADDRESS]) },
        asking_for("other", &[ADDRESS]),
    ];
    for owner in [same_container, same_pod, same_mac] {
        world.attach(first.clone()).await.unwrap();
        world.detach("first").await;
        for restarts in [false, true] {
            if restarts {
                world.restart().await;
                world.hello(&[]).await;
            }
            for other in &others {
                let refused = world.attach(other.clone()).await.unwrap_err();
                assert_eq!(refused.reason, Reason::AddressInUse);
                for words in ["cool-down", "MAC address"] {
                    assert!(refused.message.contains(words), "{refused}");
                }
            }
        }
        let view = world.attach(owner.clone()).await.unwrap();
        assert_eq!(view.record.leases[0].address.ip().to_string(), ADDRESS);
        world.check();
        // After a restart the service must still know that the address is held again.
        world.restart().await;
        world.hello(&[live(&view, true)]).await;
        assert_eq!(world.refused(others[0].clone()).await, Reason::AddressInUse);
        world.detach(&owner.key.container_id).await;
        // The latest holder is the former owner.
        if owner.key.container_id == first.key.container_id {
            continue;
        }
        let refused = world.attach(asking_for("first", &[ADDRESS])).await;
        assert_eq!(refused.unwrap_err().reason, Reason::AddressInUse);
        world = with_cool_down().await;
    }
}

#[tokio::test]
async fn failed_attach_leaves_the_cool_down() {
    let world = with_cool_down().await;
    let asked = asking_for("first", &["10.1.0.77", "fd00:1::77"]);
    world.attach(asked.clone()).await.unwrap();
    world.detach("first").await;
    let other = || asking_for("other", &["10.1.0.77"]);
    let beyond = asking_for("first", &["10.1.0.77", "fd00:1::1"]);
    assert_eq!(world.refused(beyond).await, Reason::AddressNotAllowed);
    assert_eq!(world.refused(other()).await, Reason::AddressInUse);
    world.set_full(true);
    assert_eq!(world.refused(asked.clone()).await, Reason::JournalUnavailable);
    world.set_full(false);
    assert_eq!(world.refused(other()).await, Reason::AddressInUse);
    world.attach(asked).await.unwrap();
    world.check();
}

#[tokio::test]
async fn free_subnet_comes_before_cooling_addresses() {
    let mut configuration = configuration();
    configuration.networks = vec![
        network(
            "name = 'two'\ndefault = true\n[[subnets]]\ncidr = '10.9.0.0/31'\n[[subnets]]\ncidr = '10.9.1.0/31'\n",
        ),
        network("name = 'one'\n[[subnets]]\ncidr = '10.8.0.0/31'\n"),
    ];
    let with_cool_down = dpu_service::attachments::Settings {
        address_cool_down: Duration::from_secs(600),
        ..settings()
    };
    let world = World::with(configuration, with_cool_down, 8).await;
    let on_one = |pod: &str| requesting(spec(pod), |it| it.network = "one".into());
    for pod in ["a", "b"] {
        world.attach(spec(pod)).await.unwrap();
        world.attach(on_one(&format!("{pod}-one"))).await.unwrap();
    }
    world.detach("a").await;
    world.detach("a-one").await;
    // When this network's older cool-down makes way, the first network's address could have been leased as well.
    let given = async {
        while world.attach(on_one("next-one")).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within(Duration::from_secs(60), given).await.expect("the subnet stays used up");
    let next = world.attach(spec("next")).await.unwrap();
    assert_eq!(next.record.leases[0].address.to_string(), "10.9.1.0/31");
    world.check();
}
