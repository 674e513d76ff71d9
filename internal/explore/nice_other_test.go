//go:build !unix

package explore_test

func stepBack() {}
