// Package transporttest is a conformance test for drivers: the rules that every
// implementation of package transport has to keep, ours or another's. A driver's test is
//
//	func TestConformance(t *testing.T) {
//		transporttest.Run(t, transporttest.Harness{
//			Open: func(t testing.TB) transport.Transport { return &mybroker.Transport{URL: url(t)} },
//		})
//	}
//
// What a driver offers is found out from the driver: its Limits, and the optional interfaces
// that it implements. A rule about something that it does not offer is reported as "not
// offered" and counted in the last line of the test's log, never left out in silence. A rule
// that fails prints the sentence that was broken.
//
// docs/writing-a-transport.md lists the rules.
package transporttest
