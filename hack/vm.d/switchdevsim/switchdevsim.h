/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SWITCHDEVSIM_H
#define SWITCHDEVSIM_H

#include <linux/netdevice.h>

/* Whether it is a port of a netdevsim card. */
bool is_port(const struct net_device *dev);

/* bridges.c: ports in bridges. */
int begin_bridges(void);
void end_bridges(void);

/* rules.c: flower filters at the ingress of representors. */
int begin_rules(void);
void end_rules(void);

#endif
