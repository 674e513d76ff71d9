package pubsub

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

const (
	defaultLinger = 500 * time.Millisecond
	defaultPoll   = 250 * time.Millisecond
)

// Options tune a Hub. The zero value means every default.
type Options struct {
	// Family says where release messages are published.
	Family Family
	// Linger is how long a channel stays subscribed after its last subscriber has
	// left, and a connection open after its last channel. Default 500ms, negative
	// not at all.
	Linger time.Duration
	// Poll is about how often the subscribers of a channel that is not confirmed
	// get a Look. Default 250ms. Each interval is up to a fifth shorter or longer.
	Poll time.Duration
	// Report is told of each subscription that failed and each connection that was
	// lost. The hub holds no mutex then, but the connection's goroutine does not go
	// on before it returns. It may call the hub, except Close.
	Report func(error)
}

// A Signal says why a subscriber was notified.
type Signal uint8

const (
	// Message: a message was published on the channel: a release.
	Message Signal = iota + 1
	// Look: releases may have gone unheard, since the subscription was just
	// confirmed, or is not confirmed at present.
	Look
)

// A Hub shares subscriptions between subscribers. Its methods may be called from
// any goroutine, but not from a notify function. Only Publisher and Close wait
// for the network.
type Hub struct {
	client  rueidis.Client
	o       Options
	cluster bool

	ctx    context.Context // ends with Close, to interrupt every command
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine of the hub

	family  atomic.Uint32 // a Family: Auto until it is known
	probing chan struct{} // has an element while someone asks for the family
	busy    atomic.Int64  // len(channels), to be read without the mutex

	// mu guards everything below and all channels, subscribers, legs and links. It
	// is held while notify functions run, which is why none runs once stop has
	// returned; never while waiting for the network or in Report.
	mu       sync.Mutex
	closed   bool
	prober   bool // a goroutine asks for the family
	channels map[string]*channel
	links    map[linkKey]*link
	slots    map[uint16]string     // owner of each cluster slot, as far as known
	fresh    []*subscriber         // to be greeted with a Look
	timed    map[*channel]struct{} // channels whose due is to be watched
	timer    *time.Timer           // runs tick
	tickAt   time.Time             // when, zero if not
}

// channel is what subscribers subscribe to.
type channel struct {
	name   string
	subs   []*subscriber
	legs   []*leg    // one for each family in use, none while that is unknown
	wanted bool      // has subscribers, or lingers
	due    time.Time // of the end of lingering, or of the next Look by polling
}

type subscriber struct {
	notify  func(Signal)
	channel *channel // nil once stopped
	index   int      // in channel.subs
}

// New returns a hub that subscribes through client. It asks the server nothing
// and starts no goroutine.
func New(client rueidis.Client, o Options) *Hub {
	if o.Linger == 0 {
		o.Linger = defaultLinger
	}
	o.Linger = max(o.Linger, 0)
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	h := &Hub{
		client:   client,
		o:        o,
		cluster:  client.Mode() == rueidis.ClientModeCluster,
		probing:  make(chan struct{}, 1),
		channels: make(map[string]*channel),
		links:    make(map[linkKey]*link),
		slots:    make(map[uint16]string),
		timed:    make(map[*channel]struct{}),
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	family := o.Family
	if family == Auto && !h.cluster {
		family = Publish
	}
	h.family.Store(uint32(family))
	return h
}

// Subscribe has notify called for every message on the channel, and with a Look
// whenever messages may have been missed. The first Look comes when the channel
// is confirmed, or soon if it is already: whatever the subscriber saw of its
// lock, it saw before it listened.
//
// Neither Subscribe nor stop calls notify or waits for the network, and notify
// is never called once stop has returned. It is called from goroutines of the
// hub and of the client, with the hub's mutex held: it must return quickly and
// not call the hub. A slow one delays the whole hub, but no commands of the
// client. After Close nothing is subscribed and stop does nothing.
func (h *Hub) Subscribe(channel string, notify func(Signal)) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return func() {}
	}
	c := h.channels[channel]
	if c == nil {
		c = h.open(channel)
	}
	s := h.add(c, notify)
	if c.confirmed() {
		h.greet(s)
	}
	return func() { h.remove(s) }
}

// Join is Subscribe if the channel is confirmed at present, lingering or not, and
// otherwise does nothing and returns false. It costs no command, and next to
// nothing while the hub has no channels. Nothing is missed from then on, so there
// is no Look to begin with: join first and try for the lock then.
func (h *Hub) Join(channel string, notify func(Signal)) (stop func(), ok bool) {
	if h.busy.Load() == 0 {
		return func() {}, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.channels[channel]
	if h.closed || c == nil || !c.confirmed() {
		return func() {}, false
	}
	s := h.add(c, notify)
	return func() { h.remove(s) }, true
}

// Len returns how many channels are subscribed or about to be, including those
// that linger or are being left.
func (h *Hub) Len() int { return int(h.busy.Load()) }

// Close ends all subscriptions and the hub's goroutines, and waits for that no
// longer than ctx allows. What it cannot interrupt is the client's dialing, which
// has its own time limit. Closing again only waits.
func (h *Hub) Close(ctx context.Context) {
	h.mu.Lock()
	h.closed = true
	h.busy.Store(0)
	h.cancel()
	if h.timer != nil {
		h.timer.Stop()
	}
	h.mu.Unlock()

	done := make(chan struct{})
	go func() {
		h.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// open makes a channel, which becomes wanted when it gets a subscriber.
func (h *Hub) open(name string) *channel {
	c := &channel{name: name}
	h.channels[name] = c
	h.busy.Add(1)
	if h.known() != Auto {
		h.attach(c)
	} else if !h.prober {
		h.prober = true
		h.wg.Go(h.probe)
	}
	return c
}

func (h *Hub) add(c *channel, notify func(Signal)) *subscriber {
	s := &subscriber{notify: notify, channel: c, index: len(c.subs)}
	c.subs = append(c.subs, s)
	if len(c.subs) == 1 && !c.confirmed() {
		h.watch(c, jitter(h.o.Poll))
	}
	if !c.wanted {
		c.wanted = true
		for _, g := range c.legs {
			g.link.touch(g)
		}
	}
	return s
}

func (h *Hub) remove(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := s.channel
	if c == nil {
		return
	}
	s.channel = nil
	end := len(c.subs) - 1
	c.subs[s.index] = c.subs[end]
	c.subs[s.index].index = s.index
	c.subs[end] = nil
	c.subs = c.subs[:end]
	if end == 0 {
		h.watch(c, h.o.Linger)
	}
}

// greet owes s a Look: it subscribed to a channel that was already confirmed.
func (h *Hub) greet(s *subscriber) {
	h.fresh = append(h.fresh, s)
	if len(h.fresh) > 1 {
		return // whoever will greet the first greets all
	}
	h.wg.Go(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, s := range h.fresh {
			if s.channel != nil && !h.closed {
				s.notify(Look)
			}
		}
		h.fresh = nil
	})
}

// watch makes the channel due after d.
func (h *Hub) watch(c *channel, d time.Duration) {
	if h.closed {
		return
	}
	c.due = time.Now().Add(d)
	h.timed[c] = struct{}{}
	h.arm(c.due)
}

func (h *Hub) arm(at time.Time) {
	if !h.tickAt.IsZero() && !at.Before(h.tickAt) {
		return
	}
	h.tickAt = at
	if h.timer == nil {
		h.timer = time.AfterFunc(time.Until(at), h.tick)
	} else {
		h.timer.Reset(time.Until(at))
	}
}

// tick does what is due.
func (h *Hub) tick() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	now := time.Now()
	var next time.Time
	for c := range h.timed {
		switch {
		case len(c.subs) > 0 && c.confirmed():
			delete(h.timed, c)
			continue
		case c.due.After(now):
		case len(c.subs) > 0:
			c.notify(Look)
			c.due = now.Add(jitter(h.o.Poll))
		default:
			delete(h.timed, c)
			h.leave(c)
			continue
		}
		if next.IsZero() || c.due.Before(next) {
			next = c.due
		}
	}
	h.tickAt = time.Time{}
	if !next.IsZero() {
		// Every tick looks at all of them, so that they must not come one by one.
		const parts = 10
		if soonest := now.Add(max(time.Millisecond, min(h.o.Poll, h.o.Linger)/parts)); next.Before(soonest) {
			next = soonest
		}
		h.arm(next)
	}
}

// leave ends the time in which the channel is wanted.
func (h *Hub) leave(c *channel) {
	c.wanted = false
	for _, g := range c.legs {
		if g.state == confirmed {
			g.link.touch(g)
		}
	}
	h.forget(c)
}

// forget drops a channel that is not wanted as soon as the server knows nothing
// of it.
func (h *Hub) forget(c *channel) {
	if c.wanted {
		return
	}
	for _, g := range c.legs {
		if g.state != absent {
			return
		}
	}
	for _, g := range c.legs {
		delete(g.link.legs, g)
		g.link.poke() // it may have nothing left to do
	}
	delete(h.channels, c.name)
	if !h.closed {
		h.busy.Add(-1)
	}
}

// confirmed reports whether every message on the channel is heard.
func (c *channel) confirmed() bool {
	for _, g := range c.legs {
		if g.state != confirmed {
			return false
		}
	}
	return len(c.legs) > 0
}

func (c *channel) notify(s Signal) {
	for _, sub := range c.subs {
		sub.notify(s)
	}
}

func (h *Hub) report(err error) {
	if h.o.Report != nil {
		h.o.Report(err)
	}
}

// jitter makes processes that started together drift apart: d plus or minus 20%.
func jitter(d time.Duration) time.Duration {
	return d*4/5 + rand.N(d*2/5+1)
}
