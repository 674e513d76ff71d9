package core

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/lease"
	"github.com/holdfast-go/holdfast/scripts"
)

const (
	// maxErrands bounds how many callers share a script: the server's other clients
	// have to wait for it.
	maxErrands = 64

	// headway is the time for which a command may have the way to the server to
	// itself. On a round trip that is longer there is room for more of them. Where many
	// calls go together a command takes longer, and two keep client and server at work.
	headway      = 12 * time.Microsecond
	broadHeadway = 400 * time.Microsecond
	broadRoom    = 2

	// few callers go alone, whatever room there is: what combining spares them is less
	// than what it takes to wait for each other.
	few = 16

	// maxRoom bounds how many commands of one script may be under way before those
	// that come are combined, and firstRoom is how many while no round trip is known.
	maxRoom   = 32
	firstRoom = 4

	// lookEvery is for how many commands the clock is looked at once although others
	// were under way.
	lookEvery = 8

	// stuckAfter is how long callers wait for a command to come back before they go
	// without: its connection may be dead, and the next one alive.
	stuckAfter = 10 * time.Millisecond
)

// A combiner has a script run for many callers. As long as few ask, each sends a
// command of its own. While the way to the server is full, callers wait for one
// command to come back and then go together, all who wait: under load the server,
// the client and the kernel have one command to handle instead of dozens. Nobody
// waits while there is room.
type combiner struct {
	client     rueidis.Client
	batch      *scripts.Batch
	stuckAfter time.Duration
	headway    time.Duration
	minRoom    int
	maxRoom    int
	few        int // 0: even these are combined
	maxErrands int
	// timeout bounds a command of several callers if their contexts may end at any
	// time, and is 0 if they do not: then the first caller's does.
	timeout time.Duration

	mu      sync.Mutex // guards what follows
	trip    time.Duration
	room    int // how many may be under way
	flights int // how many are
	callers int // of those and of those who wait
	crowd   int // how many of them there have been lately
	looks   int // how many went alone
	waiting []*errand
	apart   bool // the server does not run one script for keys of several slots

	guard    *time.Timer
	guarding bool // guard is set; it is while callers wait
	landings int  // since guard was set
}

// An errand is one caller that waits to be sent.
type errand struct {
	ctx   context.Context
	call  scripts.Call
	ready chan struct{} // receives once
	leads []*errand     // it is to send all these, itself first
	alone bool          // it is to send itself once more, by itself
	reply rueidis.RedisMessage
	err   error
}

var errands = sync.Pool{New: func() any { return &errand{ready: make(chan struct{}, 1)} }}

// Run runs the script of b once, perhaps together with others; ctx bounds it. The
// error is the client's, or the error reply of this run.
func (e *Env) Run(ctx context.Context, b *scripts.Batch, keys, args []string) (rueidis.RedisMessage, error) {
	// All such contexts have the same length: whoever leads is the first to have to
	// give up, and none of the others needs a timer of its own.
	if c := e.combiner(b); c != nil && lease.Patient(ctx) {
		return c.run(ctx, keys, args)
	}
	return b.Run(ctx, e.Client, keys, args)
}

// A Combiner has a batch run for callers whose contexts may end at any time: one that
// leaves a run that was sent does not know what became of it. Many may use it at once.
type Combiner struct{ combiner }

// NewCombiner returns a combiner of runs that a server can do as one script, at most
// so many; in a cluster their keys have to be in one slot. timeout bounds a command.
func (e *Env) NewCombiner(b *scripts.Batch, most int, timeout time.Duration) *Combiner {
	return &Combiner{combiner{
		client: e.Client, batch: b, stuckAfter: stuckAfter, headway: broadHeadway, minRoom: broadRoom, maxRoom: maxRoom, room: broadRoom,
		maxErrands: most, timeout: timeout,
	}}
}

// Run runs the batch's script once, perhaps together with others. The error is the
// client's, or the error reply of this run; or that of ctx if it ended meanwhile, or a
// [fault.Failure] of what was not executed if it ended before the run was sent.
func (c *Combiner) Run(ctx context.Context, keys, args []string) (rueidis.RedisMessage, error) {
	return c.run(ctx, keys, args)
}

// combiner returns the combiner of b; nil in a cluster, where the keys of
// different callers lie in different slots.
func (e *Env) combiner(b *scripts.Batch) *combiner {
	if c, ok := e.combiners.Load(b); ok {
		return c.(*combiner)
	}
	var c *combiner
	if e.Client.Mode() != rueidis.ClientModeCluster {
		c = &combiner{
			client: e.Client, batch: b, stuckAfter: stuckAfter, headway: headway, minRoom: 1, maxRoom: maxRoom, room: firstRoom, few: few,
			maxErrands: maxErrands,
		}
	}
	first, _ := e.combiners.LoadOrStore(b, c)
	return first.(*combiner)
}

func (c *combiner) run(ctx context.Context, keys, args []string) (rueidis.RedisMessage, error) {
	c.mu.Lock()
	c.callers++
	c.crowd = max(c.crowd, c.callers)
	if c.flights < c.space() || c.apart {
		var began time.Time
		clear := c.flights == 0
		if c.looks++; clear || c.looks%lookEvery == 0 {
			began = time.Now()
		}
		c.flights++
		c.mu.Unlock()
		defer func() { c.land(began, clear, 1) }()
		reply, err := c.batch.Run(ctx, c.client, keys, args)
		if err != nil { // it may not have gone all the way
			began = time.Time{}
		}
		return reply, err
	}
	e := errands.Get().(*errand)
	e.ctx = ctx
	e.call.Keys, e.call.Args = append(e.call.Keys[:0], keys...), append(e.call.Args[:0], args...)
	c.waiting = append(c.waiting, e)
	if !c.guarding {
		c.watch()
	}
	c.mu.Unlock()
	if c.timeout == 0 {
		<-e.ready
	} else if err := c.wait(e); err != nil {
		return rueidis.RedisMessage{}, err
	}
	if e.leads != nil {
		c.fly(e.leads)
	}
	if e.alone {
		e.reply, e.err = c.batch.Run(ctx, c.client, keys, args)
	}
	reply, err := e.reply, e.err
	*e = errand{ready: e.ready, call: e.call}
	errands.Put(e)
	return reply, err
}

// errNotSent is for a caller that left before its run was sent.
var errNotSent = &fault.Failure{Class: fault.NotExecuted, Err: errors.New("not sent in time, behind the calls of others")}

// wait waits for what becomes of e, which is another's to send. The error is for a
// caller whose context ended before.
func (c *combiner) wait(e *errand) error {
	select {
	case <-e.ready:
		return nil
	case <-e.ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiting, e); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
		c.callers--
		return errNotSent
	}
	return e.ctx.Err()
}

// space is how many commands may be under way. The mutex is held.
func (c *combiner) space() int {
	if c.crowd <= c.few {
		return max(c.room, min(c.few, c.maxRoom))
	}
	return c.room
}

// land is called when a command of so many callers has come back that was sent at
// began, which is zero if nobody looked at the clock; clear says that it found the way
// empty. Its place is for those who wait.
func (c *combiner) land(began time.Time, clear bool, callers int) {
	var trip time.Duration
	if !began.IsZero() {
		trip = time.Since(began)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if trip > 0 {
		// What came back sooner than the way was thought to be long says how long it is
		// at most, whatever else was on it. What took longer may have waited for a
		// processor: then there is not more room, but less time to lose.
		switch {
		case c.trip == 0 || trip < c.trip:
			c.trip = trip
		case clear:
			c.trip += (min(trip, 4*c.trip) - c.trip) / 8
		}
		c.room = min(c.minRoom+int(c.trip/c.headway), c.maxRoom)
	}
	c.landings++
	c.flights--
	c.crowd -= (c.crowd - c.callers + 7) / 8 // rounded up, or the last few would never be forgotten
	c.callers -= callers
	if c.flights < c.space() {
		c.depart()
	}
}

// depart sends those who wait, if any. The mutex is held.
func (c *combiner) depart() {
	n := min(len(c.waiting), c.maxErrands)
	if n == 0 {
		return
	}
	c.flights++
	leads := append([]*errand(nil), c.waiting[:n]...)
	rest := copy(c.waiting, c.waiting[n:])
	clear(c.waiting[rest:])
	c.waiting = c.waiting[:rest]
	if c.timeout > 0 { // none of them has to stay until it is back
		go c.fly(leads)
		return
	}
	leads[0].leads = leads
	leads[0].ready <- struct{}{}
}

// watch sees to it that nobody waits for a command that does not come back. The
// mutex is held.
func (c *combiner) watch() {
	c.guarding, c.landings = true, 0
	if c.guard == nil {
		c.guard = time.AfterFunc(c.stuckAfter, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.landings == 0 {
				c.depart()
			}
			if c.guarding = len(c.waiting) > 0; c.guarding {
				c.watch()
			}
		})
		return
	}
	c.guard.Reset(c.stuckAfter)
}

// fly sends all of leads, on the goroutine of the first unless they may leave, and
// gives the others what is theirs.
func (c *combiner) fly(leads []*errand) {
	first, others := leads[0], leads[1:]
	ctx := first.ctx
	if c.timeout > 0 {
		others = leads
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
		defer cancel()
		ctx = bound
	}
	for _, e := range leads {
		e.err = errNoReply // should the client panic
	}
	defer func() {
		for _, e := range others {
			e.ready <- struct{}{}
		}
		c.land(time.Time{}, false, len(leads))
	}()
	if len(leads) == 1 {
		first.reply, first.err = c.batch.Run(ctx, c.client, first.call.Keys, first.call.Args)
		return
	}
	calls := make([]scripts.Call, len(leads))
	for i, e := range leads {
		calls[i] = e.call
	}
	replies, err := c.batch.Exec(ctx, c.client, calls)
	for i, e := range leads {
		switch {
		case err == nil:
			e.reply, e.err = replies[i], replies[i].Error()
		case refused(err):
			// For one key that the user may not touch; nothing was done.
			e.alone = true
		default:
			e.err = err
		}
	}
	if reply, ok := redisReply(err); ok && wordOf(reply.Error()) == "CROSSSLOT" {
		c.part()
	}
}

// part sends everybody apart from now on.
func (c *combiner) part() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apart = true
	for _, e := range c.waiting {
		e.alone = true
		e.ready <- struct{}{}
	}
	c.callers -= len(c.waiting)
	c.waiting = nil
}
