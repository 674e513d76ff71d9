// Package redistest gives tests real servers and real faults: server processes
// that are killed, paused and restarted, alone, with replicas, as a cluster or
// watched by sentinels; memory that is full and clocks that jump; a TCP proxy
// that loses, delays, holds and forges replies; and re-executed copies of the
// test binary which can be stopped or killed in the middle of what they do.
//
// Nothing here is simulated on purpose. What a client does when a reply is lost
// after the command was executed depends on buffers, retries and reconnects of
// the client library and of the kernel, and only the real thing shows them.
package redistest

// TB is the part of testing.TB that the helpers use. It is declared here so
// that programs other than tests can use the package without linking testing.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(fn func())
	TempDir() string
	Name() string
}
