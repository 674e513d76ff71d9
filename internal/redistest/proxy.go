package redistest

import (
	"bufio"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	// How long a client may take to notice that its connection was cut.
	lingerTimeout = time.Second
)

type mode int

const (
	passing mode = iota
	blackHole
	refusing
)

// Proxy is a TCP proxy in front of a server that breaks on demand. It parses
// both directions into whole commands and replies and so knows which reply
// belongs to which command, pipelined or not; the bytes are passed unchanged.
//
// A command matches when its arguments, joined by single spaces, contain the
// text to match, exactly as the client wrote it. A command is taken by the
// oldest rule of each sort that matches it. Rules are independent of the modes
// and stay until they are used up.
//
// The proxy does not understand TLS, CLIENT REPLY and MONITOR. The client of a
// cluster learns the address of the nodes from them and goes around the proxy,
// unless the nodes announce the address of the proxy.
type Proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup
	requests atomic.Int64

	mu       sync.Mutex
	closed   bool
	mode     mode
	delay    time.Duration
	links    map[*link]struct{}
	rules    []*rule
	dropProb float64
	dropRand *rand.Rand
}

// NewProxy starts a proxy to the target on a free loopback port, for the time
// of a test. At its end all the connections are closed.
func NewProxy(tb TB, target string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("redistest: proxy: %v", err)
	}
	p := &Proxy{target: target, listener: l, links: map[*link]struct{}{}}
	p.wg.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.KillAll()
	p.wg.Wait()
}

// Addr returns the address for clients to connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Requests returns the number of commands forwarded to the server so far, those
// included with which a client sets up its connections.
func (p *Proxy) Requests() int64 { return p.requests.Load() }

// Pass makes the proxy forward everything at once, which it does initially.
func (p *Proxy) Pass() { p.set(passing, 0) }

// Delay makes everything arrive later by d, in the same order, in both
// directions: a round trip takes 2*d longer. Like on a long wire, what follows
// closely is not delayed by the sum.
func (p *Proxy) Delay(d time.Duration) { p.set(passing, d) }

// BlackHole makes all bytes vanish, in both directions. Connections stay open,
// and that one end closes them does not reach the other; new connections are
// accepted and silent.
//
// After BlackHole a connection which lost bytes stays silent until either end
// closes it, as no network delivers a stream with a hole in it. Connections
// that were opened meanwhile, or that one end closed, are then cut.
func (p *Proxy) BlackHole() { p.set(blackHole, 0) }

// Refuse closes all connections, and new ones as soon as they are accepted.
func (p *Proxy) Refuse() { p.set(refusing, 0) }

func (p *Proxy) set(m mode, delay time.Duration) {
	p.mu.Lock()
	healed := p.mode == blackHole && m != blackHole
	p.mode, p.delay = m, delay
	var cut []*link
	for l := range p.links {
		if m == refusing || healed && (l.ended || l.server == nil && l.dark) {
			cut = append(cut, l)
		}
	}
	p.mu.Unlock()
	for _, l := range cut {
		l.close()
	}
}

// KillAll closes the present connections, once. What was held or delayed on
// them is lost.
func (p *Proxy) KillAll() {
	p.mu.Lock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.close()
	}
}

// effect is the sort of a rule.
type effect int

const (
	dropReply effect = iota
	holdReply
	holdRequest
	answer
	effects // how many there are
)

// rule is what to do with the next matching commands. Its fields are guarded
// by the mutex of the proxy.
type rule struct {
	p      *Proxy
	effect effect
	match  string
	raw    []byte // of an answer
	left   int    // commands still to be taken, negative for all
	todo   int    // effects still to happen until done
	done   chan struct{}
	gate   chan struct{} // of a hold, closed to release
}

func (p *Proxy) add(r *rule) *rule {
	r.p, r.done, r.todo = p, make(chan struct{}), r.left
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.left == 0 {
		close(r.done)
		return r
	}
	p.rules = append(p.rules, r)
	return r
}

// happened counts the effect.
func (r *rule) happened() {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.todo > 0 {
		if r.todo--; r.todo == 0 {
			close(r.done)
		}
	}
	if r.todo == 0 {
		r.p.rules = slices.DeleteFunc(r.p.rules, func(o *rule) bool { return o == r })
	}
}

// giveBack undoes the taking of a command whose connection ended before the
// effect happened: a trap for one reply must not be used up by none.
func (r *rule) giveBack() {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.left >= 0 && r.todo > 0 {
		r.left++
	}
}

// Trap is a rule for a number of commands.
type Trap struct{ r *rule }

// Done returns a channel that is closed when the rule has taken effect as many
// times as it was made for.
func (t *Trap) Done() <-chan struct{} { return t.r.done }

// Disarm ends the rule before it is used up.
func (t *Trap) Disarm() {
	t.r.p.mu.Lock()
	defer t.r.p.mu.Unlock()
	t.r.left = 0
	if t.r.todo < 0 {
		t.r.todo = 0
	}
	t.r.p.rules = slices.DeleteFunc(t.r.p.rules, func(o *rule) bool { return o == t.r })
}

// Hold is a rule which keeps one command or its reply.
type Hold struct {
	r    *rule
	once sync.Once
}

// Held returns a channel that is closed when the proxy has got what it is to
// keep: the reply, that is the server has executed the command; or else the
// command, that is the server has not seen it.
func (h *Hold) Held() <-chan struct{} { return h.r.done }

// Release delivers what is held and everything that waits behind it. Before
// anything is held it makes the rule ineffective.
func (h *Hold) Release() { h.once.Do(func() { close(h.r.gate) }) }

// DropReply loses the replies to the next n commands that match, or with a
// negative n to all of them. The server executes the command, and as soon as it
// has answered the connection is cut: earlier replies are delivered, this one
// and later ones are not, for without one reply all later ones of a pipeline
// would be taken for the wrong command's.
func (p *Proxy) DropReply(match string, n int) *Trap {
	return &Trap{p.add(&rule{effect: dropReply, match: match, left: n})}
}

// DropReplies does what DropReply does to each command with probability prob,
// including those that set up a connection. The random source makes a failure
// repeatable; without one a shared source is used. Zero turns it off.
func (p *Proxy) DropReplies(prob float64, rng *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropProb, p.dropRand = prob, rng
}

// HoldReply keeps the reply to the next command that matches: the command was
// executed and the client does not know. All that the server sends later on
// the connection waits behind it. To hold the reply to a SUBSCRIBE holds its
// first confirmation.
func (p *Proxy) HoldReply(match string) *Hold { return p.hold(holdReply, match) }

// HoldRequest keeps the next command that matches: the server does not know of
// it yet. All that the client sends later on the connection waits behind it.
// On Release it reaches the server even if the client has gone, like a packet
// that was long under way.
func (p *Proxy) HoldRequest(match string) *Hold { return p.hold(holdRequest, match) }

func (p *Proxy) hold(e effect, match string) *Hold {
	return &Hold{r: p.add(&rule{effect: e, match: match, left: 1, gate: make(chan struct{})})}
}

// Answer answers the next n commands that match, or with a negative n all of
// them, with the raw bytes of one reply, such as "-LOADING busy\r\n". They are
// not forwarded. In a pipeline the reply comes at the place of its command.
func (p *Proxy) Answer(match, raw string, n int) *Trap {
	return &Trap{p.add(&rule{effect: answer, match: match, raw: []byte(raw), left: n})}
}

// verdict is what happens to one command: the rule of each sort, if any.
type verdict struct {
	rules [effects]*rule
	drop  bool
}

// judge takes the rules for a command.
func (p *Proxy) judge(c command) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	var v verdict
	text := c.text()
	for _, r := range p.rules {
		if v.rules[r.effect] == nil && r.left != 0 && strings.Contains(text, r.match) {
			v.rules[r.effect] = r
		}
	}
	if a := v.rules[answer]; a != nil {
		// What is not forwarded has no reply to hold or drop.
		v = verdict{}
		v.rules[answer] = a
	}
	for _, r := range v.rules {
		if r != nil && r.left > 0 {
			r.left--
		}
	}
	v.drop = v.rules[dropReply] != nil
	if !v.drop && v.rules[answer] == nil && p.dropProb > 0 {
		random := rand.Float64
		if p.dropRand != nil {
			random = p.dropRand.Float64
		}
		v.drop = random() < p.dropProb
	}
	return v
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := &link{p: p, client: conn, done: make(chan struct{}), gone: make(chan struct{})}
		l.requests, l.replies = newLine(l), newLine(l)
		p.mu.Lock()
		if p.mode == refusing || p.closed {
			p.mu.Unlock()
			_ = conn.Close()
			continue
		}
		l.dark = p.mode == blackHole
		p.links[l] = struct{}{}
		// Inside the lock, so that close does not wait before this is added.
		if l.dark {
			p.wg.Go(l.swallowAll)
		} else {
			p.wg.Go(l.run)
		}
		p.mu.Unlock()
	}
}

// link is a connection of a client and the one to the server that belongs to it.
//
// Commands and replies each go through a reader and a line with a writer. The
// writers ignore errors: the reader of the same connection sees them too, and
// what is under way in the other direction must still arrive.
type link struct {
	p                 *Proxy
	client            net.Conn
	requests, replies *line
	done              chan struct{} // closed by close
	gone              chan struct{} // closed when the client has closed
	once              sync.Once

	// Guarded by p.mu.
	server net.Conn
	dark   bool // bytes were lost
	ended  bool // one end closed it in a black hole

	mu      sync.Mutex // may be held when p.mu is taken, not the reverse
	pending []*reply   // the replies to come, in order
	cut     bool       // nothing is forwarded any more
	resp3   bool
	// A command to subscribe or unsubscribe was seen.
	subscriber bool
}

// reply is a reply to come from the server, or the place of an answer.
type reply struct {
	verdict verdict
	confirm string // kind of message that replies, "none" for an ordinary reply
	// A SUBSCRIBE or the like is confirmed once for each channel.
	channels int
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		l.p.mu.Lock()
		delete(l.p.links, l)
		server := l.server
		l.p.mu.Unlock()
		_ = l.client.Close()
		if server != nil {
			_ = server.Close()
		}
	})
}

// swallowAll is the life of a connection made in a black hole.
func (l *link) swallowAll() {
	defer l.close()
	for buf := make([]byte, 4096); ; {
		if _, err := l.client.Read(buf); err != nil {
			return
		}
	}
}

// swallow reports whether what is to be forwarded now vanishes instead.
func (l *link) swallow() bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.dark = l.dark || l.p.mode == blackHole
	return l.dark
}

// requestsEnd tells the server that the client has closed, after everything the
// client sent before. What the server still sends is let through.
func (l *link) requestsEnd() {
	if l.swallow() {
		l.close()
		return
	}
	if c, ok := l.server.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
}

// hangUp closes the connection to the client in such a way that what was sent
// before still arrives: if the client had sent something that was not read, the
// kernel would reset the connection and throw away what is under way.
func (l *link) hangUp() {
	_ = l.server.Close()
	if c, ok := l.client.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
	timeout := time.NewTimer(lingerTimeout)
	defer timeout.Stop()
	select {
	case <-l.gone:
	case <-l.done:
	case <-timeout.C:
	}
	l.close()
}

// end notes that one end has closed and reports whether to tell the other now.
func (l *link) end() bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.ended = true
	return l.p.mode != blackHole
}

func (l *link) run() {
	defer l.close()
	server, err := net.DialTimeout("tcp", l.p.target, dialTimeout)
	if err != nil {
		return
	}
	l.p.mu.Lock()
	l.server = server
	l.p.mu.Unlock()
	select {
	case <-l.done: // closed without knowing of server
		_ = server.Close()
		return
	default:
	}
	var wg sync.WaitGroup
	wg.Go(l.readRequests)
	wg.Go(l.readReplies)
	wg.Go(func() { l.requests.write(server, l.requestsEnd) })
	wg.Go(func() { l.replies.write(l.client, l.hangUp) })
	<-l.done
	wg.Wait()
	for _, r := range l.pending {
		for _, rule := range r.verdict.rules {
			if rule != nil && rule.effect != holdRequest {
				rule.giveBack()
			}
		}
	}
}

func (l *link) readRequests() {
	defer close(l.gone)
	r := bufio.NewReader(l.client)
	for {
		c, err := readCommand(r)
		if err != nil {
			l.requests.push(item{end: true})
			return
		}
		if l.swallow() {
			continue
		}
		l.request(c)
	}
}

// request puts a command on its way and its reply on the list.
func (l *link) request(c command) {
	if len(c.args) == 0 { // the server does not answer an empty line
		l.requests.push(item{data: c.raw})
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return
	}
	r := &reply{verdict: l.p.judge(c), confirm: "none"}
	if r.verdict.rules[answer] != nil {
		l.pending = append(l.pending, r)
		l.answer()
		return
	}
	switch name := c.name(); name {
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		l.subscriber = true
		// Without a channel it is confirmed for each one there is, or once.
		r.confirm, r.channels = name, max(1, len(c.args)-1)
	case "hello":
		if len(c.args) > 1 {
			l.resp3 = c.args[1] == "3"
		}
	case "reset":
		l.resp3 = false
	}
	l.pending = append(l.pending, r)
	it := item{data: c.raw, command: true}
	if h := r.verdict.rules[holdRequest]; h != nil {
		it.gate = h.gate
		defer h.happened()
	}
	l.requests.push(it)
}

// answer gives the answers whose turn it is. It needs l.mu.
func (l *link) answer() {
	for len(l.pending) > 0 && !l.cut {
		a := l.pending[0].verdict.rules[answer]
		if a == nil {
			return
		}
		l.pending = l.pending[1:]
		l.replies.push(item{data: a.raw})
		a.happened()
	}
}

func (l *link) readReplies() {
	r := bufio.NewReader(l.server)
	for {
		raw, kind, err := readValue(r, nil)
		if err != nil {
			l.mu.Lock()
			l.cut = true
			l.mu.Unlock()
			l.replies.push(item{end: true})
			return
		}
		if l.swallow() {
			continue
		}
		l.reply(raw, kind)
	}
}

// reply finds the command that a value from the server replies to, if it is not
// a message which nobody asked for, and applies the rules of that command.
func (l *link) reply(raw []byte, kind byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return
	}
	defer l.answer()

	// Messages and confirmations are pushes, but under RESP2 arrays. Those can
	// hardly be confused with a reply: a subscribed connection runs no commands
	// whose replies look like that.
	message := ""
	if kind == '>' || kind == '*' && l.subscriber && !l.resp3 {
		message = firstOf(raw)
	}
	unasked := kind == '>' || pubsubMessage(message)

	var head *reply
	if len(l.pending) > 0 {
		head = l.pending[0]
	}
	if head == nil || unasked && message != head.confirm {
		l.replies.push(item{data: raw})
		return
	}
	// A command that fails has one reply, an error, for all its channels.
	if head.channels--; !unasked || head.channels <= 0 {
		l.pending = l.pending[1:]
	}
	it := item{data: raw}
	rules := &head.verdict.rules
	if h := rules[holdReply]; h != nil {
		it.gate = h.gate
		h.happened()
		rules[holdReply] = nil
	}
	if head.verdict.drop {
		l.cut = true
		it = item{cut: true, gate: it.gate}
		if d := rules[dropReply]; d != nil {
			defer d.happened()
			rules[dropReply] = nil
		}
	}
	l.replies.push(it)
}

func pubsubMessage(kind string) bool {
	switch kind {
	case "message", "pmessage", "smessage",
		"subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		return true
	}
	return false
}

// item is something to write at its time.
type item struct {
	data    []byte
	command bool
	due     time.Time
	gate    <-chan struct{} // if there is one, held until it is closed
	cut     bool            // cut the connection instead
	end     bool            // the other side has closed
}

// line is a delay line: whatever enters leaves in the same order when it is due.
type line struct {
	l    *link
	wake chan struct{}

	mu    sync.Mutex
	queue []item
}

func newLine(l *link) *line { return &line{l: l, wake: make(chan struct{}, 1)} }

func (n *line) push(it item) {
	n.l.p.mu.Lock()
	delay := n.l.p.delay
	n.l.p.mu.Unlock()
	if delay > 0 {
		it.due = time.Now().Add(delay)
	}
	n.mu.Lock()
	n.queue = append(n.queue, it)
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// next returns the next item when it is to leave, or false after the connection
// was closed.
func (n *line) next() (item, bool) {
	for {
		n.mu.Lock()
		if len(n.queue) > 0 {
			it := n.queue[0]
			n.queue = n.queue[1:]
			n.mu.Unlock()
			return it, n.await(it)
		}
		n.mu.Unlock()
		select {
		case <-n.wake:
		case <-n.l.done:
			return item{}, false
		}
	}
}

func (n *line) await(it item) bool {
	if wait := time.Until(it.due); !it.due.IsZero() && wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-n.l.done:
			return false
		}
	}
	if it.gate == nil {
		return true
	}
	select {
	case <-it.gate:
		return true
	case <-n.l.done:
		return false
	}
}

// write writes what leaves the line to conn until the connection is closed. At
// the end of what the other side sent it calls end, unless the network is such
// that this cannot be known.
func (n *line) write(conn net.Conn, end func()) {
	for {
		it, ok := n.next()
		switch {
		case !ok:
			return
		case it.end:
			if n.l.end() {
				end()
			}
			return
		case n.l.swallow():
			continue
		case it.cut:
			n.l.hangUp()
			return
		}
		if it.command {
			n.l.p.requests.Add(1)
		}
		_, _ = conn.Write(it.data)
	}
}
