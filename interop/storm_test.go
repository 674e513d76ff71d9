package interop_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/reentrant"
	"github.com/holdfast-go/holdfast/rwlock"
)

const (
	// envStorm is how long TestStorm lasts in each place.
	envStorm = "HOLDFAST_STORM"
	// stormLease is short, for it is what a killed process holds the others up for.
	stormLease = 3 * time.Second
	// stuck is a wait that no sequence of kills explains.
	stuck        = 25 * time.Second
	stormThreads = 2
	// stormPause is at least between two kills: a process has to come up and get in.
	stormPause = 1500 * time.Millisecond
)

// stormLocks are KIND:NAME, one of them with a hash tag.
func stormLocks(prefix string) []string {
	var locks []string
	for _, l := range []string{"lock", "fenced"} {
		locks = append(locks, l+":"+prefix+":"+l)
	}
	return append(locks, "rw:"+prefix+":rw", "rw:{"+prefix+"}:tagged")
}

// Four Java and four Go processes take and give back the same few locks at random,
// with nested holds, fixed leases and timed waits, and are killed in the middle of
// it. One observer watches.
func TestStorm(t *testing.T) {
	span := 5 * time.Second
	if text := os.Getenv(envStorm); text != "" {
		var err error
		span, err = time.ParseDuration(text)
		require.NoError(t, err, envStorm)
	}
	for _, p := range []place{single(redistest.Run(t)), places()[1]} {
		t.Run(p.name, func(t *testing.T) { storm(t, p, span) })
	}
}

func storm(t *testing.T, p place, span time.Duration) {
	const each = 4
	o := observe(t)
	locks := stormLocks(key(t))
	seed := int64(0)
	next := func() string { seed++; return strconv.FormatInt(seed, 10) }
	lease := strconv.FormatInt(stormLease.Milliseconds(), 10)

	javas, javaDone := make([]*jvm, each), make([]<-chan answer, each)
	startJava := func(i int) {
		javas[i] = startJVM(t, jvms[i%len(jvms)].jar) // versions take turns
		settings := append([]string{"watchdog=" + lease}, p.java...)
		get(t, javas[i].start("storm", "-", "open", settings...))
		args := append([]string{o.addr(), next(), strconv.Itoa(stormThreads), lease}, locks...)
		javaDone[i] = javas[i].start("storm", "-", "storm", args...)
	}
	gos := make([]*redistest.Process, each)
	startGo := func(i int) {
		var addrs []string
		for _, s := range p.servers {
			addrs = append(addrs, s.Addr())
		}
		gos[i] = redistest.Child(t, "storm", "STORM_OBSERVER="+o.addr(), "STORM_SEED="+next(),
			"STORM_ADDRS="+strings.Join(addrs, ","), "STORM_CLUSTER="+strconv.FormatBool(p.cluster != nil),
			"STORM_LOCKS="+strings.Join(locks, " "))
	}
	for i := range each {
		startGo(i)
		startJava(i)
	}
	began := time.Now()
	kills := 0
	for end := began.Add(span); time.Until(end) > 0; {
		// Wait for progress, not for time: kill while there is work to be killed in.
		before := o.sections()
		redistest.Eventually(t, stuck, "somebody gets in", func() bool { return o.sections() > before })
		time.Sleep(min(max(span/15, stormPause), time.Until(end)))
		if time.Until(end) < stormLease {
			continue
		}
		i := rand.IntN(each)
		if kills%2 == 0 {
			require.ErrorIs(t, gos[i].Wait(0), os.ErrDeadlineExceeded, "a Go process ended by itself")
			gos[i].Kill()
			startGo(i)
		} else {
			blocked(t, javaDone[i], "a Java process ended by itself")
			javas[i].kill()
			startJava(i)
		}
		kills++
	}
	o.stop()

	longest := 0
	for i := range each {
		for _, result := range []string{get(t, javaDone[i]), gos[i].Line("result ", patience)} {
			ms, err := strconv.Atoi(result)
			require.NoError(t, err, result)
			longest = max(longest, ms)
		}
		require.NoError(t, gos[i].Wait(patience))
	}
	lasted := time.Since(began)
	o.mu.Lock()
	defer o.mu.Unlock()
	require.Empty(t, o.faults)
	require.Less(t, time.Duration(longest)*time.Millisecond, stuck, "a waiter was stuck")
	note("storms", "%s, %v: %d operations, %d critical sections, %d kills, longest wait %d ms, %d leases lost",
		p.name, lasted.Round(time.Second), o.calls, o.entered, kills, longest, o.lost)

	// What is left: fencing counters, which have no TTL, and nothing else once the
	// leases and the notes of killed processes have run out.
	left := func() (left []string) {
		for _, key := range p.keys(t, "*"+key(t)+"*") {
			if !strings.HasPrefix(key, "redisson_lock_token:") {
				left = append(left, key)
			}
		}
		return left
	}
	for _, key := range left() {
		require.Positive(t, p.ttl(t, key), "%s has no TTL", key)
	}
	// Redisson keeps notes about an unlock for up to 20 s.
	redistest.Eventually(t, 2*patience, "no key is left", func() bool { return len(left()) == 0 })
	for _, l := range locks {
		kind, name, _ := strings.Cut(l, ":")
		channel := plain.channel(name)
		if kind == "rw" {
			channel = writer.channel(name)
		}
		redistest.Eventually(t, patience, "nobody listens to "+channel, func() bool { return p.listeners(t, channel) == 0 })
	}
}

// sections is how many there have been.
func (o *observer) sections() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.entered
}

func init() { roles["storm"] = stormer } //nolint:gochecknoinits // beside what it is about

// stormer is a Go process of the storm. It does what the Java program does.
func stormer() {
	addrs := strings.Split(os.Getenv("STORM_ADDRS"), ",")
	redis, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: addrs, DisableCache: true, ForceSingleClient: os.Getenv("STORM_CLUSTER") != "true",
	})
	check(err)
	hf, err := holdfast.New(redis, holdfast.SessionOptions{Logger: slog.New(slog.DiscardHandler)})
	check(err)
	seed, err := strconv.ParseUint(os.Getenv("STORM_SEED"), 10, 64)
	check(err)
	s := &goStorm{hf: hf, locks: strings.Fields(os.Getenv("STORM_LOCKS"))}
	var threads sync.WaitGroup
	for i := range stormThreads {
		threads.Go(func() {
			c, err := net.Dial("tcp", os.Getenv("STORM_OBSERVER"))
			check(err)
			defer c.Close()
			s.one(rand.New(rand.NewPCG(seed, uint64(i))), &observed{c, bufio.NewReader(c)})
		})
	}
	threads.Wait()
	check(hf.Close(context.Background()))
	redis.Close()
	redistest.Say("result %d", s.longest.Load())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

type goStorm struct {
	hf      *holdfast.Session
	locks   []string
	longest atomic.Int64 // wait, in milliseconds
	stopped atomic.Bool
}

// observed is a thread's connection to the observer.
type observed struct {
	conn net.Conn
	in   *bufio.Reader
}

func (o *observed) tell(line string) {
	_, err := o.conn.Write([]byte(line + "\n"))
	check(err)
}

func (o *observed) ask(line string) string {
	o.tell(line)
	answer, err := o.in.ReadString('\n')
	check(err)
	return strings.TrimSpace(answer)
}

func (s *goStorm) one(random *rand.Rand, o *observed) {
	calls := 0
	bye := func(word, name string) string {
		n := calls
		calls = 0
		return fmt.Sprintf("%s %s go %d", word, name, n)
	}
	nap := func(most int) { time.Sleep(time.Duration(random.IntN(most+1)) * time.Millisecond) }
	for !s.stopped.Load() {
		kind, name, _ := strings.Cut(s.locks[random.IntN(len(s.locks))], ":")
		options := holdfast.Options{Lease: stormLease}
		if kind == "fenced" {
			options.Fencing, options.TokenRetention = true, -1
		}
		switch random.IntN(5) {
		case 0:
			options.Wait = -1
		case 1:
			options.Wait = time.Duration(1+random.IntN(50)) * time.Millisecond
		case 2:
			options.Fixed = true
		}
		// A wait of a few milliseconds may be over before the answer is there.
		late := func(err error) bool { return options.Wait > 0 && errors.Is(err, holdfast.ErrUnavailable) }
		var l holdfast.Locker
		var rw *rwlock.Lock // if it is its writer
		var err error
		mode := "alone"
		switch {
		case kind != "rw":
			l, err = reentrant.New(s.hf, name, options)
		case random.IntN(3) == 0:
			rw = newReadWrite(s.hf, name, options)
			l = rw.Writer()
		default:
			l, mode = newReadWrite(s.hf, name, options).Reader(), "shared"
		}
		check(err)
		began := time.Now()
		ctx, lease, err := l.Lock(context.Background())
		for ms := time.Since(began).Milliseconds(); ; {
			if most := s.longest.Load(); ms <= most || s.longest.CompareAndSwap(most, ms) {
				break
			}
		}
		calls++
		if err != nil {
			if !errors.Is(err, holdfast.ErrNotAcquired) && !late(err) {
				panic(err)
			}
			continue
		}
		o.tell(fmt.Sprintf("enter %s %s %d", name, mode, lease.Token()))
		var nested *holdfast.Lease
		if random.IntN(4) == 0 {
			_, nested, err = l.Lock(ctx)
			calls++
			if err != nil && !errors.Is(err, holdfast.ErrLost) && !late(err) {
				panic(err)
			}
		}
		nap(3)
		if nested != nil {
			_ = nested.Unlock(ctx)
		}
		if rw != nil && random.IntN(4) == 0 && ctx.Err() == nil {
			o.ask(bye("exit", name))
			if ctx, lease, err = rw.Writer().Downgrade(ctx, lease); err != nil {
				continue // it was lost
			}
			o.tell("enter " + name + " shared 0")
			nap(2)
		}
		if ctx.Err() != nil {
			o.tell(bye("lost", name))
		} else if o.ask(bye("exit", name)) == "stop" {
			s.stopped.Store(true)
		}
		if err := lease.Unlock(ctx); err != nil && !errors.Is(err, holdfast.ErrLost) {
			panic(err)
		}
		nap(3)
	}
}
