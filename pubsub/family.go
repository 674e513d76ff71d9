package pubsub

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// A Family is one of the two kinds of pub/sub that Redis has. Messages of one do
// not reach subscribers of the other.
type Family uint8

const (
	// Auto is Sharded for a cluster whose servers know it, and Publish otherwise.
	Auto Family = iota
	// Publish is PUBLISH and SUBSCRIBE. A cluster sends each message to all nodes.
	Publish
	// Sharded is SPUBLISH and SSUBSCRIBE, which only concern the node that owns the
	// channel's slot.
	Sharded
	// Both subscribes in both families, for a fleet which changes over. A message
	// that is published in both is then notified twice.
	Both
)

// String returns the name of the family in lower case.
func (f Family) String() string {
	switch f {
	case Auto:
		return "auto"
	case Publish:
		return "publish"
	case Sharded:
		return "sharded"
	case Both:
		return "both"
	}
	return "unknown"
}

// members are the families to subscribe in.
func (f Family) members() []Family {
	if f == Both {
		return []Family{Publish, Sharded}
	}
	return []Family{f}
}

// Publisher returns what a release script must send: Publish, Sharded or Both,
// never Auto. It asks the server once in the life of a hub, and only about a
// cluster with Auto. If no server answers before ctx ends it returns Both: to
// guess wrong would be to wake nobody.
func (h *Hub) Publisher(ctx context.Context) Family {
	if f := h.known(); f != Auto {
		return f
	}
	if err := h.decide(ctx); err != nil {
		return Both
	}
	return h.known()
}

// Sharded reports whether subscriptions are, or may turn out to be, sharded. Then
// their slot may move to another node without a word if the old one has died, and
// the caller should bound its sleep.
func (h *Hub) Sharded() bool { return h.known() != Publish }

func (h *Hub) known() Family { return Family(h.family.Load()) }

// probe decides on the family for the channels that wait for that.
func (h *Hub) probe() {
	for fails := 0; ; fails++ {
		ctx, cancel := context.WithTimeout(h.ctx, commandTimeout)
		err := h.decide(ctx)
		cancel()
		if err == nil {
			return
		}
		h.mu.Lock()
		h.prober = !h.closed && len(h.channels) > 0
		more := h.prober
		h.mu.Unlock()
		if !more {
			return
		}
		h.report(err)
		sleep(h.ctx, backoff(fails))
	}
}

// decide asks for the family unless it is known. Any answer of a server decides,
// for other processes and other clients decide by the same answer; that there is
// none at present does not.
func (h *Hub) decide(ctx context.Context) error {
	select {
	case h.probing <- struct{}{}:
		defer func() { <-h.probing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if h.known() != Auto {
		return nil
	}
	family, err := h.ask(ctx)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.family.Store(uint32(family))
	if !h.closed {
		for _, c := range h.channels {
			h.attach(c)
		}
	}
	return nil
}

func (h *Hub) ask(ctx context.Context) (Family, error) {
	err := errNoNode
	nodes := h.client.Nodes()
	for _, addr := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[addr]
		// Not every node gets all the time: the first may be the one that is down.
		one, cancel := context.WithTimeout(ctx, commandTimeout/3)
		// Not the builder's command for this: that one would be sent again and
		// again while the node cannot be reached.
		err = node.Do(one, node.B().Arbitrary("PUBSUB", "SHARDNUMSUB").Build()).Error()
		cancel()
		if err == nil {
			return Sharded, nil
		}
		if _, ok := rueidis.IsRedisErr(err); ok && !passing(err) {
			return Publish, nil
		}
	}
	return Auto, err
}

// attach gives the channel its legs.
func (h *Hub) attach(c *channel) {
	for _, family := range h.known().members() {
		g := &leg{channel: c, family: family}
		c.legs = append(c.legs, g)
		h.route(g, h.owner(g))
	}
}

// owner returns the address of the node on which to subscribe g. It is empty if
// that does not depend on the channel.
func (h *Hub) owner(g *leg) string {
	if !h.cluster || g.family != Sharded {
		return ""
	}
	// The builder knows the rule by which keys and channels belong to slots.
	const mask = 1<<14 - 1
	cmd := h.client.B().Ssubscribe().Channel(g.channel.name).Build()
	g.slot = cmd.Slot() & mask
	if addr, ok := h.slots[g.slot]; ok {
		return addr
	}
	// Any node will say who the owner is.
	return h.guess("")
}

// guess returns the address of some node, if possible another one than not.
func (h *Hub) guess(not string) string {
	for _, addr := range slices.Sorted(maps.Keys(h.client.Nodes())) {
		if addr != not {
			return addr
		}
	}
	return not
}

// route makes the link to addr responsible for g, which must be absent.
func (h *Hub) route(g *leg, addr string) {
	if g.link != nil {
		delete(g.link.legs, g)
		g.link.poke()
	}
	key := linkKey{g.family, addr}
	l := h.links[key]
	if l == nil {
		l = &link{hub: h, key: key, wake: make(chan struct{}, 1), legs: make(map[*leg]struct{})}
		h.links[key] = l
		h.wg.Go(l.run)
	}
	g.link, g.queued = l, false
	l.legs[g] = struct{}{}
	l.touch(g)
}

// movedTo returns where a redirection that came from the node at from points to.
func movedTo(err error, from string) (addr string, ok bool) {
	re, ok := rueidis.IsRedisErr(err)
	if !ok {
		return "", false
	}
	if addr, ok = re.IsMoved(); !ok {
		return "", false
	}
	host, port, splitErr := net.SplitHostPort(addr)
	if splitErr == nil && (host == "" || host == "?") {
		// The node does not know its name: it is where we reached it.
		if host, _, splitErr = net.SplitHostPort(from); splitErr == nil {
			addr = net.JoinHostPort(host, port)
		}
	}
	return addr, true
}

// passing reports whether the error says nothing about the command, but that the
// server cannot do it now.
func passing(err error) bool {
	return hasPrefix(err, "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK")
}

// wholesale reports whether a batch was refused for reasons that do not depend on
// the channels, so that there is no use in trying them one by one.
func wholesale(err error) bool {
	return passing(err) || hasPrefix(err, "ERR unknown command") ||
		hasPrefix(err, "NOPERM") && strings.Contains(err.Error(), "' command")
}

func hasPrefix(err error, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(err.Error(), p) })
}

var errNoNode = errors.New("the client knows no such node")

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
