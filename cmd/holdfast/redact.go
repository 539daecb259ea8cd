package main

import (
	"net/url"
	"regexp"
	"strings"
)

// hidden stands in the place of a password.
const hidden = "xxxxx"

var (
	userinfo      = regexp.MustCompile(`//[^\s"]*@`)
	queryPassword = regexp.MustCompile(`(?i)((?:password|pwd|sharedaccesskey|sharedaccesssignature)=)[^&;\s"]*`)
)

// redact takes out of a text the password of the URL rawURL, in whatever form it
// is in it, and what looks like one.
func redact(text, rawURL string) string {
	for _, secret := range secrets(rawURL) {
		text = strings.ReplaceAll(text, secret, hidden)
	}
	text = userinfo.ReplaceAllStringFunc(text, func(s string) string {
		user, _, withPassword := strings.Cut(s[len("//"):len(s)-1], ":")
		if !withPassword {
			return s
		}
		return "//" + user + ":" + hidden + "@"
	})
	return queryPassword.ReplaceAllString(text, "${1}"+hidden)
}

// secrets are the password of a URL as it is written there and as it is meant.
func secrets(rawURL string) []string {
	var found []string
	add := func(s string) {
		const short = 4 // shorter ones would take words apart that have nothing to do with them
		if len(s) >= short {
			found = append(found, s)
		}
	}
	for part := range strings.SplitSeq(rawURL, ";") { // of a connection string of Azure Service Bus
		if name, value, _ := strings.Cut(part, "="); strings.EqualFold(name, "SharedAccessKey") || strings.EqualFold(name, "SharedAccessSignature") {
			add(value)
		}
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return found
	}
	if password, ok := u.User.Password(); ok {
		add(password)
		add(url.UserPassword("", password).String()[1:])
	}
	add(u.Query().Get("password"))
	return found
}
