package redistest

import (
	"fmt"
	"strconv"
	"strings"
)

// Move is a slot of a cluster on its way from one primary to another. Until
// Finish the old node serves the keys that it still has, and redirects with ASK
// for all others; the new one answers only to clients that were sent there.
type Move struct {
	c        *Cluster
	tb       TB
	slot     string
	from, to *Server
}

// MoveSlot moves the slot and its keys to another primary and returns when all
// the nodes know.
func (c *Cluster) MoveSlot(tb TB, slot uint16, to *Server) {
	tb.Helper()
	c.BeginMove(tb, slot, to).Finish()
}

// BeginMove opens the slot at both ends and moves no keys yet. A slot moves to
// the node that has it already at once.
func (c *Cluster) BeginMove(tb TB, slot uint16, to *Server) *Move {
	tb.Helper()
	m := &Move{c: c, tb: tb, slot: strconv.Itoa(int(slot)), from: c.owner(tb, slot), to: to}
	if m.from == to {
		return m
	}
	// The new node first: clients are sent there from the moment of the second.
	m.set(to, "IMPORTING", m.from.Do(tb, "CLUSTER", "MYID"))
	m.set(m.from, "MIGRATING", to.Do(tb, "CLUSTER", "MYID"))
	return m
}

func (m *Move) set(on *Server, state, id string) {
	m.tb.Helper()
	await(m.tb, "the replicas of the node acknowledge the state of the slot", func() error {
		_, err := on.TryDo("CLUSTER", "SETSLOT", m.slot, state, id)
		// Valkey waits for its replicas, and fails when they take too long.
		if err != nil && !strings.HasPrefix(err.Error(), "NOREPLICAS") {
			m.tb.Fatalf("redistest: CLUSTER SETSLOT %s %s: %v", m.slot, state, err)
		}
		return err
	})
}

// MoveKeys moves these keys of the slot, which must exist.
func (m *Move) MoveKeys(keys ...string) {
	m.tb.Helper()
	for _, key := range keys {
		if got := m.migrate(key); got != "OK" {
			m.tb.Fatalf("redistest: move key %s: %s", key, got)
		}
	}
}

func (m *Move) migrate(keys ...string) string {
	m.tb.Helper()
	return m.from.Do(m.tb, append([]string{
		"MIGRATE", "127.0.0.1", strconv.Itoa(m.to.port), "", "0",
		strconv.FormatInt(migrateTimeout.Milliseconds(), 10), "KEYS",
	}, keys...)...)
}

// Finish moves the keys that are left, gives the slot to the new node and
// returns when all the nodes know.
func (m *Move) Finish() {
	m.tb.Helper()
	if m.from == m.to {
		return
	}
	for {
		keys := m.from.list(m.tb, "CLUSTER", "GETKEYSINSLOT", m.slot, "100")
		if len(keys) == 0 {
			break
		}
		m.migrate(keys...) // NOKEY: they have expired
	}
	// The new node first: in the other order nobody would serve the slot for a
	// moment, and for good if somebody crashed then.
	id := m.to.Do(m.tb, "CLUSTER", "MYID")
	m.set(m.to, "NODE", id)
	m.set(m.from, "NODE", id)
	for _, s := range m.c.primaries() {
		if s != m.to && s != m.from {
			m.set(s, "NODE", id)
		}
	}
	await(m.tb, "all the nodes know that the slot has moved", func() error {
		slot, _ := strconv.ParseUint(m.slot, 10, 16)
		for _, v := range m.c.views() {
			if v.err != nil {
				return v.err
			}
			if !v.nodes[id].owns(uint16(slot)) {
				return fmt.Errorf("%s does not", v.server.Addr())
			}
		}
		return nil
	})
}
