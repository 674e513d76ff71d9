package explore

const (
	maxClients = 3
	maxFaults  = 4 // and so late copies, and condemned owners
	maxRefused = 2 // a client that was refused so often gives up
)

// A Step is one step of a client's program.
type Step struct {
	Command
	By int8 // Count: how many holds more, 1 or -1
}

// A client is how far a client has come, and what it knows. The rules are those of
// package lease.
type client struct {
	at      uint8 // its next step
	over    bool  // it does nothing more
	owner   Owner
	holding bool // it believes so, until the tick until
	until   int8
	mode    uint8 // of the hold
	asked   uint8 // the mode of its last acquire
	holds   uint8
	tainted bool // a copy of its acquire may be late
	expired bool // its hold ended by its clock, maybe before the server's
	forced  bool // somebody forced the lock open: its belief is no longer looked at

	// Of the step that it is at.
	begun   bool
	again   bool // a copy was sent of which nothing was heard
	blind   bool // and that was a release, without receipts
	repair  bool // it gave up a count: the last one known is to be restored
	refused uint8
	pending pending
}

// A pending command is slow, and its client waits for it.
type pending struct {
	command  Command // zero: there is none
	sent     int8
	executed bool
	verdict  Verdict
}

// A deadOwner has been condemned.
type deadOwner struct {
	release Command
	swept   bool
}

// command is what c sends next: what it sent before, if the step has begun.
func (x *explorer[M]) command(c *client) Command {
	step := x.Clients[c.owner.Client][c.at]
	cmd := step.Command
	if !c.begun {
		c.begun = true
		switch {
		case cmd.Op == Acquire:
			c.owner.N++
			c.tainted, c.forced, c.asked = false, false, cmd.Mode
		case step.By < 0:
			c.holds--
		case cmd.Op == Release, cmd.Op == Convert: // the contexts end before it is sent
			c.holding = false
		}
	}
	if cmd.Op != Force && cmd.Op != Prune {
		cmd.Owner = c.owner
	}
	if cmd.Op == Count {
		cmd.Holds = c.holds
		if step.By > 0 && !c.repair {
			cmd.Holds++
		}
	}
	return cmd
}

// unknown tells c that nothing will be heard of what it sent.
func (x *explorer[M]) unknown(c *client, cmd Command) {
	c.again = true
	switch {
	case cmd.Op == Acquire:
		c.tainted = true
	case cmd.Op == Release:
		c.blind = !x.Receipts
	case cmd.Op == Force, cmd.Op == Prune, c.repair: // never sent again
		x.advance(c)
	}
}

// hear tells c the answer to what it sent at the tick sent.
func (x *explorer[M]) hear(s *state[M], c *client, cmd Command, sent int8, v Verdict) {
	again := c.again
	c.pending, c.again = pending{}, false
	switch {
	case cmd.Op == Acquire && v == Mine && s.now < sent+cmd.Ticks:
		c.holding, c.holds, c.mode, c.until = true, 1, cmd.Mode, sent+cmd.Ticks
		x.advance(c)
	case cmd.Op == Acquire && v == Mine: // nobody may act on it; the next attempt is another owner's
		x.condemn(s, c)
		c.begun, c.tainted = false, false
		x.refuse(s, c)
	case cmd.Op == Acquire:
		x.refuse(s, c)
	case cmd.Op == Force, cmd.Op == Prune:
		x.advance(c)
	case cmd.Op == Convert && v == Mine && s.now < sent+cmd.Ticks:
		if c.tainted { // a late copy of its acquire would be another owner's
			x.condemn(s, c)
		}
		// And one of this would make a reader of that.
		c.holding, c.holds, c.mode, c.until, c.tainted = true, 1, cmd.Mode, sent+cmd.Ticks, again
		c.asked = cmd.Mode
		x.advance(c)
	case cmd.Op == Convert: // nothing is held then
		x.giveUp(s, c)
	case cmd.Op == Release:
		if c.tainted {
			x.condemn(s, c)
		}
		if v != Mine && !c.blind {
			c.stop()
			return
		}
		x.advance(c)
	case v != Mine:
		x.lose(s, c)
	default:
		if cmd.Op == Count && !c.repair {
			c.holds = cmd.Holds
		}
		if cmd.Op == Renew {
			c.until = max(c.until, sent+cmd.Ticks)
		}
		x.advance(c)
	}
}

// advance takes c to its next step. A hold that it did not get, it does not give
// back.
func (x *explorer[M]) advance(c *client) {
	next := client{at: c.at + 1, owner: c.owner}
	if c.holding {
		next.holding, next.until, next.mode, next.holds = true, c.until, c.mode, c.holds
		next.tainted, next.forced, next.asked = c.tainted, c.forced, c.asked
	}
	*c = next
	program := x.Clients[c.owner.Client]
	for int(c.at) < len(program) && program[c.at].By < 0 && c.holds == 1 {
		c.at++
	}
	if int(c.at) == len(program) {
		c.at, c.over = 0, true
	}
}

// mayGiveUp reports whether c may leave the step that it is at.
func (x *explorer[M]) mayGiveUp(c *client) bool {
	step := x.Clients[c.owner.Client][c.at]
	switch step.Op {
	case Acquire:
		return c.again || c.refused > 0
	case Count:
		return c.again && step.By > 0
	case Renew, Convert:
		return c.again
	default: // a release goes on until the answer is known, or the lease is over
		return false
	}
}

func (x *explorer[M]) giveUp(s *state[M], c *client) {
	switch step := &x.Clients[c.owner.Client][c.at]; step.Op {
	case Acquire:
		if c.tainted {
			x.condemn(s, c)
		}
		c.stop()
	case Convert:
		x.condemn(s, c)
		c.asked = step.Mode
		x.condemn(s, c)
		c.stop()
	case Count:
		c.repair, c.again = true, false
	default:
		x.advance(c)
	}
}

// stop ends the program of c.
func (c *client) stop() { *c = client{owner: c.owner, over: true} }

// refuse notes that an attempt of c was in vain.
func (x *explorer[M]) refuse(s *state[M], c *client) {
	if c.refused++; c.refused == maxRefused {
		x.giveUp(s, c)
	}
}

// lose ends c, whose hold is no more.
func (x *explorer[M]) lose(s *state[M], c *client) {
	if p := c.pending; p.command.Op != 0 && !p.executed {
		s.fly(p.command)
	}
	converting := !c.over && c.begun && x.Clients[c.owner.Client][c.at].Op == Convert
	if c.tainted || converting {
		x.condemn(s, c)
	}
	if converting {
		c.asked = x.Clients[c.owner.Client][c.at].Mode
		x.condemn(s, c)
	}
	expired := s.now >= c.until
	c.stop()
	c.expired = expired
}

// condemn has the owner of c released for as long as late copies may arrive.
func (x *explorer[M]) condemn(s *state[M], c *client) {
	for i := range s.dead {
		if s.dead[i].release.Op == 0 {
			release := x.Sweep
			release.Op, release.Owner = Release, c.owner
			if x.Sided {
				release.Mode = c.asked & sides
			}
			s.dead[i].release = release
			return
		}
	}
	panic("explore: too many condemned owners")
}

// passed is told that a tick has passed: leases end.
func (x *explorer[M]) passed(s *state[M]) {
	for i := range s.clients {
		c := &s.clients[i]
		releasing := false
		if !c.over && !c.holding && c.begun {
			op := x.Clients[i][c.at].Op
			releasing = op == Release || op == Convert
		}
		if (c.holding || releasing) && s.now >= c.until {
			x.lose(s, c)
		}
	}
}
