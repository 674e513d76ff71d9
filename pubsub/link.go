package pubsub

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const (
	maxChannels = 128 // per command
	maxCommands = 32  // per pipeline
	// retryRefused is about how long to wait after the server refused something.
	retryRefused = time.Second
	// recheck is how often to see whether the client still knows the node: one that
	// left the cluster may keep the connection, silent for ever.
	recheck = 5 * time.Second
	// giveUp is after how many failures to connect, in about a second, to ask other
	// nodes for the owner.
	giveUp = 8
)

// state is what the server was told of a leg on the present connection.
type state uint8

const (
	absent state = iota
	sent
	confirmed
	leaving
)

// leg is a channel in one family.
type leg struct {
	channel *channel
	family  Family
	slot    uint16 // if it is sharded in a cluster
	link    *link  // responsible for it
	state   state
	queued  bool      // in link.todo
	alone   bool      // was refused on its own, and spoils no batch any more
	hops    int       // redirections since it was last confirmed
	notYet  time.Time // until then the link leaves it as it is
	awaited bool      // counts in conn.awaiting
}

// set moves g to another state. All changes of state go through here.
func (g *leg) set(s state) {
	was := g.channel.confirmed()
	g.state = s
	if was && !g.channel.confirmed() && len(g.channel.subs) > 0 {
		h := g.link.hub
		h.watch(g.channel, jitter(h.o.Poll))
	}
}

type linkKey struct {
	family Family
	addr   string // of a node, if that matters; see Hub.owner
}

// link keeps the subscriptions of one family on one node. Its goroutine makes the
// connection, again when it was lost, and runs all commands on it.
type link struct {
	hub  *Hub
	key  linkKey
	wake chan struct{} // has an element when there may be something to do

	// Guarded by hub.mu.
	legs      map[*leg]struct{}
	todo      []*leg // may want to be subscribed or unsubscribed
	conn      *conn  // in use; handlers of earlier ones are ignored
	fails     int    // lost and failed connections since the last confirmation
	nextDial  time.Time
	idleSince time.Time // zero while there are legs
}

// touch has the goroutine of the link look at g.
func (l *link) touch(g *leg) {
	if !g.queued {
		g.queued = true
		l.todo = append(l.todo, g)
	}
	l.poke()
}

func (l *link) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *link) String() string {
	if l.key.addr == "" {
		return l.key.family.String()
	}
	return l.key.family.String() + " " + l.key.addr
}

// sharded reports whether channels belong to slots, and slots to nodes.
func (l *link) sharded() bool { return l.hub.cluster && l.key.family == Sharded }

// run is the goroutine of the link.
func (l *link) run() {
	for l.needed() {
		c, err := l.dial()
		if err != nil {
			l.lost(nil, err)
			continue
		}
		err = l.serve(c)
		if l.hub.ctx.Err() != nil {
			c.farewell(l.key.family)
		} else if err != nil {
			l.lost(c, err)
		}
		c.client.Close()
		if err == nil {
			return
		}
	}
}

// needed waits until it is time for a connection and reports whether one is
// wanted. If not, the link is no longer part of the hub.
func (l *link) needed() bool {
	h := l.hub
	for {
		h.mu.Lock()
		if h.closed || len(l.legs) == 0 {
			delete(h.links, l.key)
			h.mu.Unlock()
			return false
		}
		wait := time.Until(l.nextDial)
		h.mu.Unlock()
		if wait <= 0 {
			return true
		}
		sleep(h.ctx, wait)
	}
}

func (l *link) dial() (*conn, error) {
	client, node, err := l.pick()
	if err != nil {
		return nil, err
	}
	c, err := dedicate(client, l)
	if err != nil {
		return nil, err
	}
	c.node = node
	l.hub.mu.Lock()
	l.conn = c
	l.hub.mu.Unlock()
	return c, nil
}

// pick chooses the client to take a connection from. The node identifies what
// that depends on, to notice a change.
func (l *link) pick() (client rueidis.Client, node string, err error) {
	h := l.hub
	nodes := h.client.Nodes()
	if !h.cluster {
		return h.client, addresses(nodes), nil
	}
	node = l.key.addr
	if l.key.family == Publish && len(nodes) > 0 {
		// Any node will do, and the next one if this one is down.
		addrs := slices.Sorted(maps.Keys(nodes))
		h.mu.Lock()
		node = addrs[l.fails%len(addrs)]
		h.mu.Unlock()
	}
	if client = nodes[node]; client == nil {
		return nil, "", errNoNode
	}
	return client, node, nil
}

func addresses(nodes map[string]rueidis.Client) string {
	return strings.Join(slices.Sorted(maps.Keys(nodes)), ",")
}

// serve runs commands on c. It returns nil when the link is not needed any more,
// and otherwise why c cannot be used.
func (l *link) serve(c *conn) error {
	for {
		w := l.take()
		if w.over {
			return nil
		}
		err := l.subscribe(c, w.join)
		if err == nil {
			err = l.unsubscribe(c, w.leave)
		}
		if err == nil && len(w.join)+len(w.leave) == 0 {
			err = l.rest(c, w.rest)
		}
		if err == nil {
			err = l.check(c)
		}
		if err != nil {
			return err
		}
	}
}

// work is what a link has to do.
type work struct {
	join, leave []*leg        // already in the states sent and leaving
	rest        time.Duration // without any of these: for how long at most
	over        bool          // the link was removed from the hub
}

func (l *link) take() work {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return work{over: true}
	}
	now := time.Now()
	if len(l.legs) == 0 {
		if l.idleSince.IsZero() {
			l.idleSince = now
		}
		w := work{rest: l.idleSince.Add(h.o.Linger).Sub(now)}
		if w.over = w.rest <= 0; w.over {
			delete(h.links, l.key)
		}
		l.todo = nil
		return w
	}
	l.idleSince = time.Time{}

	w := work{rest: recheck}
	todo := l.todo
	l.todo = nil
	for _, g := range todo {
		if g.link != l {
			continue // was routed to another node
		}
		g.queued = false
		subscribe := g.state == absent && g.channel.wanted
		unsubscribe := g.state == confirmed && !g.channel.wanted
		switch wait := g.notYet.Sub(now); {
		case !subscribe && !unsubscribe:
		case wait > 0:
			w.rest = min(w.rest, wait)
			g.queued = true
			l.todo = append(l.todo, g)
		case subscribe:
			g.set(sent)
			w.join = append(w.join, g)
		default:
			g.set(leaving)
			w.leave = append(w.leave, g)
		}
	}
	return w
}

// rest waits for something to do, for d at most.
func (l *link) rest(c *conn, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-l.wake:
	case err := <-c.lost:
		return gone(err)
	case <-l.hub.ctx.Done():
		return l.hub.ctx.Err()
	case <-t.C:
	}
	return nil
}

// check makes sure from time to time that the node is still the one to use.
func (l *link) check(c *conn) error {
	if time.Since(c.checked) < recheck {
		return nil
	}
	c.checked = time.Now()
	nodes := l.hub.client.Nodes()
	if l.hub.cluster && nodes[c.node] != nil || !l.hub.cluster && addresses(nodes) == c.node {
		return nil
	}
	return fmt.Errorf("%s is not in use any more", c.node)
}

// subscribe sends SUBSCRIBE for the legs and waits for the confirmations. Those
// that are refused do not keep the others from being subscribed.
func (l *link) subscribe(c *conn, legs []*leg) error {
	for queue := batches(legs); len(queue) > 0; {
		round := queue[:min(len(queue), maxCommands)]
		queue = queue[len(round):]
		l.expect(c, round)
		results, err := c.do(l.hub.ctx, l.commands(c, round, true)...)
		if err != nil {
			return err
		}
		for i, result := range results {
			if err = result.Error(); err != nil {
				queue = append(queue, l.refused(c, round[i], err)...)
			}
		}
		if err = l.await(c); err != nil {
			return err
		}
	}
	return nil
}

// batches divides legs into what one command can carry.
func batches(legs []*leg) (all [][]*leg) {
	slices.SortStableFunc(legs, func(a, b *leg) int { return cmp.Compare(a.slot, b.slot) })
	for len(legs) > 0 {
		n := 1
		for first := legs[0]; n < min(len(legs), maxChannels); n++ {
			if first.alone || legs[n].alone || legs[n].slot != first.slot {
				break
			}
		}
		all = append(all, legs[:n])
		legs = legs[n:]
	}
	return all
}

// commands builds a command for each batch.
func (l *link) commands(c *conn, batches [][]*leg, join bool) []rueidis.Completed {
	all := make([]rueidis.Completed, len(batches))
	for i, batch := range batches {
		names := make([]string, len(batch))
		for j, g := range batch {
			names[j] = g.channel.name
		}
		b := c.client.B()
		switch {
		case l.key.family == Sharded && join:
			all[i] = b.Ssubscribe().Channel(names...).Build()
		case l.key.family == Sharded:
			all[i] = b.Sunsubscribe().Channel(names...).Build()
		case join:
			all[i] = b.Subscribe().Channel(names...).Build()
		default:
			all[i] = b.Unsubscribe().Channel(names...).Build()
		}
	}
	return all
}

// expect counts the confirmations that are to come. It must be called before the
// commands are sent.
func (l *link) expect(c *conn, round [][]*leg) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	for _, batch := range round {
		for _, g := range batch {
			g.awaited = true
		}
		c.awaiting += len(batch)
	}
}

// await waits for the confirmations: the result of a SUBSCRIBE is there with the
// first one.
func (l *link) await(c *conn) error {
	t := time.NewTimer(commandTimeout)
	defer t.Stop()
	for {
		l.hub.mu.Lock()
		left := c.awaiting
		l.hub.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-c.complete:
		case err := <-c.lost:
			return gone(err)
		case <-l.hub.ctx.Done():
			return l.hub.ctx.Err()
		case <-t.C:
			return fmt.Errorf("%d of the channels were not confirmed", left)
		}
	}
}

// settle ends the waiting for the confirmation of g.
func (c *conn) settle(g *leg) {
	if !g.awaited {
		return
	}
	g.awaited = false
	if c.awaiting--; c.awaiting == 0 {
		select {
		case c.complete <- struct{}{}:
		default:
		}
	}
}

// refused deals with a SUBSCRIBE that failed. It returns what to try at once.
func (l *link) refused(c *conn, batch []*leg, err error) (again [][]*leg) {
	h := l.hub
	h.mu.Lock()
	for _, g := range batch {
		c.settle(g)
	}
	if to, ok := movedTo(err, l.key.addr); ok && l.sharded() && to != l.key.addr {
		for _, g := range batch {
			h.slots[g.slot] = to
			l.handOver(g, to)
		}
		h.mu.Unlock()
		return nil
	}
	if len(batch) > 1 && !wholesale(err) {
		h.mu.Unlock()
		half := len(batch) / 2
		return [][]*leg{batch[:half], batch[half:]}
	}
	retryAt := time.Now().Add(jitter(retryRefused))
	for _, g := range batch {
		g.alone = len(batch) == 1
		g.notYet = retryAt
		l.vacate(g)
	}
	h.mu.Unlock()
	h.report(fmt.Errorf("pubsub: subscribe to %s: %w", names(batch), err))
	return nil
}

func names(batch []*leg) string {
	if len(batch) == 1 {
		return fmt.Sprintf("%q", batch[0].channel.name)
	}
	return fmt.Sprintf("%q and %d more", batch[0].channel.name, len(batch)-1)
}

// unsubscribe sends UNSUBSCRIBE for the legs.
func (l *link) unsubscribe(c *conn, legs []*leg) error {
	h := l.hub
	for queue := batches(legs); len(queue) > 0; {
		if busy, err := c.busy(h.ctx); err != nil {
			return err
		} else if busy {
			l.stay(queue)
			return nil
		}
		round := queue[:min(len(queue), maxCommands)]
		queue = queue[len(round):]
		results, err := c.do(h.ctx, l.commands(c, round, false)...)
		if err != nil {
			return err
		}
		h.mu.Lock()
		for _, batch := range round {
			for _, g := range batch {
				if g.state == leaving {
					l.vacate(g)
				}
			}
		}
		h.mu.Unlock()
		for i, result := range results {
			// A node that lost the slot has ended the subscription already. After any
			// other refusal what the server still sends is ignored, unless it is
			// wanted again.
			if err = result.Error(); err != nil && !hasPrefix(err, "MOVED") {
				h.report(fmt.Errorf("pubsub: unsubscribe from %s: %w", names(round[i]), err))
			}
		}
	}
	return nil
}

// stay takes back the leaving of legs for a while.
func (l *link) stay(batches [][]*leg) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	retryAt := time.Now().Add(jitter(retryRefused))
	for _, batch := range batches {
		for _, g := range batch {
			g.notYet = retryAt
			l.confirm(g) // with a Look, for it may be wanted again
		}
	}
}

// lost starts over after the connection was lost, or could not be made if c is
// nil.
func (l *link) lost(c *conn, err error) {
	h := l.hub
	h.mu.Lock()
	l.conn = nil
	l.nextDial = time.Now().Add(backoff(l.fails))
	l.fails++
	for g := range l.legs {
		g.awaited = false
		l.vacate(g)
	}
	// Nobody takes from it during an outage, in which many channels come and go.
	l.todo = slices.DeleteFunc(l.todo, func(g *leg) bool { _, ok := l.legs[g]; return !ok })
	if c == nil && l.sharded() && l.fails >= giveUp {
		l.abandon()
	}
	h.mu.Unlock()
	if l.hub.ctx.Err() == nil {
		h.report(fmt.Errorf("pubsub: connection (%s): %w", l, err))
	}
}

// abandon asks another node for the owners of the slots: this one may be dead, and
// have a successor.
func (l *link) abandon() {
	h := l.hub
	other := h.guess(l.key.addr)
	if other == l.key.addr {
		return
	}
	for g := range l.legs {
		if h.slots[g.slot] == l.key.addr {
			delete(h.slots, g.slot)
		}
		l.handOver(g, other)
	}
}

// handOver routes g to another node. Nodes that do not agree may send it back and
// forth, and are given time to come to terms.
func (l *link) handOver(g *leg, addr string) {
	if g.hops++; g.hops > 2 {
		g.notYet = time.Now().Add(backoff(g.hops))
	}
	if l.vacate(g); g.channel.wanted {
		l.hub.route(g, addr)
	}
}

// vacate notes that the server knows nothing of g (any more).
func (l *link) vacate(g *leg) {
	g.set(absent)
	if g.channel.wanted {
		l.touch(g)
	} else {
		l.hub.forget(g.channel)
	}
}

// confirm notes that messages on g are heard from now on.
func (l *link) confirm(g *leg) {
	g.set(confirmed)
	g.alone, g.hops, l.fails = false, 0, 0
	if l.sharded() {
		l.hub.slots[g.slot] = l.key.addr
	}
	if !g.channel.wanted {
		l.touch(g)
	}
	g.channel.notify(Look)
}

// onMessage is called by the reader of the connection.
func (l *link) onMessage(c *conn, m rueidis.PubSubMessage) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || l.conn != c {
		return
	}
	if ch := h.channels[m.Channel]; ch != nil {
		ch.notify(Message)
	}
}

// onSubscription is called by the reader of the connection.
func (l *link) onSubscription(c *conn, s rueidis.PubSubSubscription) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || l.conn != c {
		return
	}
	g := l.find(s.Channel)
	if g == nil {
		return
	}
	switch s.Kind {
	case "subscribe", "ssubscribe":
		c.settle(g)
		if g.state == sent {
			g.notYet = time.Time{}
			l.confirm(g)
		}
	case "unsubscribe", "sunsubscribe":
		// Either as asked for, or since the slot has moved. Then this node will
		// redirect us to the new owner.
		if g.state != sent {
			l.vacate(g)
		}
	}
}

func (l *link) find(name string) *leg {
	c := l.hub.channels[name]
	if c == nil {
		return nil
	}
	for _, g := range c.legs {
		if g.link == l {
			return g
		}
	}
	return nil
}

// backoff returns how long to wait after so many failures: 5ms at first, half a
// second at most, less up to a half of that so that processes drift apart.
func backoff(fails int) time.Duration {
	d := min(5*time.Millisecond<<min(fails, 10), 500*time.Millisecond)
	return d/2 + rand.N(d/2)
}

// gone makes an error of what a connection's lost channel said.
func gone(err error) error {
	if err == nil {
		return errors.New("closed")
	}
	return err
}
