package rwlock_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
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
	"github.com/holdfast-go/holdfast/rwlock"
)

// childLock is the lock of a child process.
func childLock(o holdfast.Options) *rwlock.Lock {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{os.Getenv("ADDR")}, DisableCache: true})
	if err != nil {
		panic(err)
	}
	hf, err := holdfast.New(client, holdfast.SessionOptions{})
	if err != nil {
		panic(err)
	}
	l, err := rwlock.New(hf, os.Getenv("NAME"), rwlock.Options{Options: o})
	if err != nil {
		panic(err)
	}
	return l
}

// killedReader reads until it is killed.
func killedReader() {
	l := childLock(holdfast.Options{Lease: 1500 * time.Millisecond})
	if _, _, err := l.Reader().Lock(context.Background()); err != nil {
		panic(err)
	}
	redistest.Say("reads")
	<-redistest.Listen()
}

// killedWaiter waits for one side until it is killed.
func killedWaiter() {
	l := childLock(holdfast.Options{})
	side := holdfast.Locker(l.Reader())
	if os.Getenv("SIDE") == "write" {
		side = l.Writer()
	}
	redistest.Say("waits")
	_, _, _ = side.Lock(context.Background())
	redistest.Say("in")
	<-redistest.Listen()
}

// streamReader reads with a few goroutines that never pause, until it is told to stop.
func streamReader() {
	l := childLock(holdfast.Options{})
	first, err := strconv.Atoi(os.Getenv("FIRST"))
	if err != nil {
		panic(err)
	}
	stop, cancel := context.WithCancel(context.Background())
	go func() {
		<-redistest.Listen()
		cancel()
	}()
	var wg sync.WaitGroup
	var reads atomic.Int64
	for i := range streamReaders {
		// Each reads always for the same time, and each for another one, so that they do
		// not leave together.
		read := streamRead - time.Duration(first+i)*time.Millisecond
		wg.Go(func() {
			for stop.Err() == nil {
				if err := l.Reader().Do(context.Background(), func(context.Context) error {
					time.Sleep(read)
					return nil
				}); err != nil {
					panic(err)
				}
				reads.Add(1)
			}
		})
	}
	redistest.Say("streams")
	wg.Wait()
	redistest.Say("reads %d", reads.Load())
}

const (
	streamRead    = 50 * time.Millisecond // the longest read of a stream
	streamReaders = 4                     // of each process
)

// A writer needs the longest read in progress, and three round trips: from its word on
// no reader comes in, those excepted whose turn it was. That is looked for in what the
// server did, in each of a hundred turns. The time that it takes is looked at too, with
// room for a machine on which four processes and whatever else share two cores.
func TestProcess_aWriterGetsInThroughASteadyStreamOfReaders(t *testing.T) {
	const turns, slack = 100, 100 * time.Millisecond
	srv := redistest.Run(t)
	var streams []*redistest.Process
	for i := range 3 {
		streams = append(streams, redistest.Child(t, "stream", "ADDR="+srv.Addr(), "NAME="+key(t), fmt.Sprint("FIRST=", i*streamReaders)))
	}
	for _, s := range streams {
		s.Line("streams", 20*time.Second)
	}
	seen := monitor(t, srv)
	l := newLock(t, session(t, srv.Addr()), key(t))
	var all, most time.Duration
	slow := 0
	for turn := range turns {
		// Eight of the twelve are in all the time, in three processes, once the last
		// writer has left. Those of a process that enter together are one owner.
		redistest.Eventually(t, 10*time.Second, "all processes read", func() bool { return inside(t, srv, key(t)) >= 3 })
		time.Sleep(time.Duration(turn%25) * time.Millisecond) // at any moment of theirs
		began := time.Now()
		ctx, w := lock(t, l.Writer())
		took := time.Since(began)
		if took > streamRead+slack {
			t.Logf("turn %d: in after %v", turn, took)
			slow++
		}
		all, most = all+took, max(most, took)
		require.NoError(t, w.Unlock(ctx))
	}
	t.Logf("%d writes beside reads of %v: in after %v on the average, %v at most, %d slow", turns, streamRead, all/turns, most, slow)
	require.LessOrEqual(t, slow, turns/4)
	require.Less(t, most, 5*time.Second)
	for _, s := range streams {
		s.Send("stop")
	}
	for _, s := range streams {
		n, err := strconv.Atoi(s.Line("reads ", 20*time.Second))
		require.NoError(t, err)
		require.Greater(t, n, turns, "readers starve")
	}

	words, late := 0, 0
	waits, been := false, map[string]bool{} // sessions that came in since the last writer
	for _, c := range seen() {
		switch {
		case c[0] == "ZADD":
			words++
			waits = true
		case c[0] == "HSET" && c[3] == "write":
			waits, been = false, map[string]bool{}
		case c[0] == "HSET" && c[3] == "read":
			session := c[4][:strings.LastIndexByte(c[4], ':')]
			if waits && been[session] {
				late++
			}
			been[session] = true
		}
	}
	require.GreaterOrEqual(t, words, turns)
	require.Zero(t, late, "readers that came in while a writer waited")
}

// monitor records the commands of scripts; what it returns ends it and returns them.
func monitor(t *testing.T, srv *redistest.Server) func() [][]string {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "MONITOR\r\n")
	require.NoError(t, err)
	in := bufio.NewScanner(conn)
	in.Buffer(nil, 1<<20)
	require.True(t, in.Scan()) // OK
	done := make(chan [][]string, 1)
	const end = "all that came before this is seen"
	go func() {
		var all [][]string
		for in.Scan() && !strings.Contains(in.Text(), end) {
			if _, command, ok := strings.Cut(in.Text(), " lua] \""); ok {
				all = append(all, strings.Split(strings.TrimSuffix(command, "\""), `" "`))
			}
		}
		done <- all
	}()
	return func() [][]string {
		srv.Do(t, "ECHO", end)
		defer conn.Close()
		return <-done
	}
}

// inside is how many owners read.
func inside(t testing.TB, srv *redistest.Server, name string) int {
	t.Helper()
	n, err := strconv.Atoi(srv.Do(t, "HLEN", name))
	require.NoError(t, err)
	return n - 1
}

func TestProcess_aReaderThatIsKilledHoldsWritersUpForItsOwnLeaseOnly(t *testing.T) {
	child := redistest.Child(t, "killed", "ADDR="+redisAddr, "NAME="+key(t))
	child.Line("reads", 20*time.Second)
	// Others read on and on, with leases that are much longer.
	readers := newLock(t, session(t, redisAddr), key(t), holdfast.Options{Lease: time.Minute})
	stop, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for stop.Err() == nil {
				_ = readers.Reader().Do(stop, func(context.Context) error { time.Sleep(20 * time.Millisecond); return nil })
			}
		})
	}
	defer wg.Wait()
	defer cancel()
	time.Sleep(time.Second) // it is renewed
	child.Kill()
	killed := time.Now()
	l := newLock(t, session(t, redisAddr), key(t))
	ctx, w := lock(t, l.Writer())
	t.Logf("in %v after the kill", time.Since(killed))
	require.Less(t, time.Since(killed), 1500*time.Millisecond+4*time.Second, "its lease, and what a slow machine needs")
	require.NoError(t, w.Unlock(ctx))
}

func TestProcess_aWriterThatIsKilledWhileItWaitsHoldsReadersUpForItsWordOnly(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	_, r := lock(t, l.Reader())
	child := redistest.Child(t, "waiter", "ADDR="+redisAddr, "NAME="+key(t), "SIDE=write")
	child.Line("waits", 20*time.Second)
	redistest.Eventually(t, 10*time.Second, "its word", func() bool { return server.Do(t, "ZCARD", "holdfast_rwlock_writers:{"+key(t)+"}") == "1" })
	taken(t, l.Reader())
	child.Kill()
	killed := time.Now()
	_, r2 := lock(t, l.Reader())
	t.Logf("readers again %v after the kill", time.Since(killed))
	require.Less(t, time.Since(killed), 6*time.Second)
	unlock(t, r)
	unlock(t, r2)
	redistest.Eventually(t, 10*time.Second, "nothing is left", func() bool { return len(server.Keys(t, "*"+key(t)+"*")) == 0 })
}

func TestProcess_aReaderThatIsKilledWhileItWaitsHoldsOneWriterUpForItsTurnOnly(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	_, w := lock(t, l.Writer())
	child := redistest.Child(t, "waiter", "ADDR="+redisAddr, "NAME="+key(t), "SIDE=read")
	child.Line("waits", 20*time.Second)
	redistest.Eventually(t, 10*time.Second, "it is noted", func() bool { return server.Do(t, "EXISTS", "holdfast_rwlock_readers:{"+key(t)+"}") == "1" })
	child.Kill()
	unlock(t, w)
	began := time.Now()
	_, w = lock(t, l.Writer())
	t.Logf("the next writer in after %v", time.Since(began))
	require.Less(t, time.Since(began), 4*time.Second)
	unlock(t, w)
	free(t, l.Writer()) // at once: it was once
}

// However many died: the last living reader's leaving, or the writer, finds out.
func TestProcess_manyDeadReadersAreTakenOut(t *testing.T) {
	l := newLock(t, session(t, redisAddr), key(t))
	_, r := lock(t, l.Reader())
	for i := range 60 { // what they left, their own leases over
		server.Do(t, "HSET", key(t), fmt.Sprintf("dead:%d", i), "3")
	}
	began := time.Now()
	taken(t, l.Writer())
	done := make(chan error, 1)
	go func() {
		done <- l.Writer().Do(within(t, 20*time.Second), func(context.Context) error { return nil })
	}()
	redistest.Eventually(t, 10*time.Second, "only the living one is left", func() bool { return inside(t, server, key(t)) == 1 })
	unlock(t, r)
	require.NoError(t, <-done)
	require.Less(t, time.Since(began), 10*time.Second)
}
