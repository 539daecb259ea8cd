// Package transporttest is a conformance test for drivers: the rules that every implementation of
// package transport must keep. The test of a driver is
//
//	func TestConformance(t *testing.T) {
//		transporttest.Run(t, transporttest.Harness{
//			Open: func(t testing.TB) transport.Transport { return &mybroker.Transport{URL: url(t)} },
//		})
//	}
//
// The kit reads the capabilities of a driver from its Limits and its optional interfaces. A rule
// about a capability that it lacks is reported as "not offered" and counted in the last line of the
// test's log. A rule that fails prints its sentence.
//
// docs/writing-a-transport.md lists the rules.
package transporttest
