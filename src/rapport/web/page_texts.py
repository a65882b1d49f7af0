"""Texts of the pages for people in German, by their English form. [CN-10]

Pages are written in English and translated when they are shown, in the language of the person
(`language` of `[peers.NAME]` and `[site]`) or, before somebody is known, of the browser. A text
without a translation is shown in English. What people and policies write is never translated.
"""

from __future__ import annotations

from rapport.communication.texts import LANGUAGES

GERMAN_TEXTS = {
    # inbox
    "Inbox": "Posteingang",
    "Inbox of {name}": "Posteingang von {name}",
    "Log out": "Abmelden",
    "Log in": "Anmelden",
    "Name": "Name",
    "Password": "Passwort",
    "nothing waits for you": "nichts wartet auf Sie",
    "{n} message waiting": "{n} Nachricht wartet",
    "{n} messages waiting": "{n} Nachrichten warten",
    "{n} shown": "{n} davon hier",
    "Nothing waits for your answer.": "Nichts wartet auf Ihre Antwort.",
    "For your information": "Zur Kenntnis",
    "All seen": "Alles gesehen",
    "Seen": "Gesehen",
    "Lately": "Zuletzt",
    "{n} earlier message": "{n} frühere Nachricht",
    "{n} earlier messages": "{n} frühere Nachrichten",
    "urgent": "dringend",
    "Urgent": "Dringend",
    "taken by {name} at": "übernommen von {name},",
    "you answered {answer} at": "Ihre Antwort: {answer},",
    "add a word (optional)": "ein Wort dazu (freiwillig)",
    "your words": "Ihre Worte",
    "Send words only": "Nur die Worte senden",
    "I take care of it": "Ich kümmere mich darum",
    "I cannot": "Ich kann nicht",
    "I can after all": "Ich kann doch",
    "done": "erledigt",
    "over": "vorbei",
    "could not be delivered": "konnte nicht zugestellt werden",
    "nobody answered": "niemand hat geantwortet",
    "the situation ended": "die Lage ist vorbei",
    "The name or the password is wrong.": "Der Name oder das Passwort ist falsch.",
    "Too many attempts. Please wait a moment and try again.": (
        "Zu viele Versuche. Bitte warten Sie einen Moment und versuchen Sie es noch einmal."
    ),
    "The password cannot be checked now. Please try again soon.": (
        "Das Passwort kann gerade nicht geprüft werden. Bitte versuchen Sie es bald wieder."
    ),
    "Please log in.": "Bitte melden Sie sich an.",
    "This link is not valid any more. Please log in.": (
        "Dieser Link gilt nicht mehr. Bitte melden Sie sich an."
    ),
    "You are logged out.": "Sie sind abgemeldet.",
    "Thank you, your answer is recorded.": "Danke, Ihre Antwort ist vermerkt.",
    "Nothing was sent. Please press a button, or write some words.": (
        "Nichts wurde gesendet. Bitte drücken Sie einen Knopf oder schreiben Sie ein paar Worte."
    ),
    "This was decided meanwhile; your answer is not needed any more.": (
        "Das wurde inzwischen entschieden; Ihre Antwort wird nicht mehr gebraucht."
    ),
    # about a message
    "policy {name}": "Regel {name}",
    "conversation {name}": "Gespräch {name}",
    "From": "Von",
    "Kind": "Art",
    "Conversation": "Gespräch",
    "Date": "Datum",
    "Task": "Aufgabe",
    "Notification": "Mitteilung",
    "Drill": "Übung",
    "request": "Anfrage",
    "message": "Nachricht",
    "Delivery report": "Zustellbericht",
    "About messages": "Über Nachrichten",
    "Login": "Anmeldung",
    "Your message was delivered": "Ihre Nachricht wurde zugestellt",
    "There is a problem with your message": "Mit Ihrer Nachricht gibt es ein Problem",
    "Your message could not be delivered": "Ihre Nachricht konnte nicht zugestellt werden",
    "Nobody answered your message in time": "Niemand hat Ihre Nachricht rechtzeitig beantwortet",
    # answer pages
    "Answer": "Antwort",
    "{name}, please answer": "{name}, bitte antworten Sie",
    "Thank you": "Danke",
    "Thank you, {name}": "Danke, {name}",
    "You can close this page.": "Sie können diese Seite schließen.",
    "Your answer “{answer}” is recorded.": "Ihre Antwort „{answer}“ ist vermerkt.",
    "Your answer “{answer}” was recorded already.": "Ihre Antwort „{answer}“ war schon vermerkt.",
    "{name} took care of it before.": "{name} hat sich schon davor darum gekümmert.",
    "You answered “{answer}” on {time}. You can change your answer.": (
        "Sie haben „{answer}“ geantwortet, {time}. Sie können Ihre Antwort ändern."
    ),
    "{name} answered on {time}.": "{name} hat geantwortet, {time}.",
    # wrong and old links
    "This link is too old": "Dieser Link ist zu alt",
    "The message it belongs to was closed some time ago, so it takes no answers any more.": (
        "Die Nachricht dazu wurde vor einiger Zeit abgeschlossen und nimmt keine Antworten mehr an."
    ),
    "If it still matters, please contact whoever sent you the message.": (
        "Wenn es noch wichtig ist, wenden Sie sich bitte an die Person, von der die Nachricht kam."
    ),
    "Your answer did not arrive": "Ihre Antwort ist nicht angekommen",
    "Nothing was recorded, because the answer was empty or could not be read.": (
        "Nichts wurde vermerkt, weil die Antwort leer war oder nicht gelesen werden konnte."
    ),
    "Please go back and press one of the buttons.": (
        "Bitte gehen Sie zurück und drücken Sie einen der Knöpfe."
    ),
    "Your answer is too long": "Ihre Antwort ist zu lang",
    "Nothing was recorded.": "Nichts wurde vermerkt.",
    "Please go back and say it in fewer words.": (
        "Bitte gehen Sie zurück und sagen Sie es in weniger Worten."
    ),
    "This page was open for too long": "Diese Seite war zu lange offen",
    "Please open your inbox again.": "Bitte öffnen Sie Ihren Posteingang noch einmal.",
    "This link does not work": "Dieser Link geht nicht",
    "Perhaps it was cut off or changed on the way. Nothing was recorded.": (
        "Vielleicht wurde er unterwegs abgeschnitten oder verändert. Nichts wurde vermerkt."
    ),
    "Please open the link in the message again: it has to be complete, to its last character.": (
        "Bitte öffnen Sie den Link in der Nachricht noch einmal: er muss bis zum letzten Zeichen "
        "vollständig sein."
    ),
    "Please wait a moment": "Bitte warten Sie einen Moment",
    "There were too many attempts in a short time. Nothing was recorded.": (
        "Es gab zu viele Versuche in kurzer Zeit. Nichts wurde vermerkt."
    ),
    "Try again in a minute.": "Versuchen Sie es in einer Minute wieder.",
    "Something went wrong here": "Hier ist etwas schiefgegangen",
    "It is not your fault, and we do not know whether your answer was recorded.": (
        "Es ist nicht Ihre Schuld, und wir wissen nicht, ob Ihre Antwort vermerkt wurde."
    ),
    "Please try again in a minute.": "Bitte versuchen Sie es in einer Minute wieder.",
}


def translated(language: str, text: str, **values: object) -> str:
    """The text in a language, its gaps filled.

    >>> translated("de", "Inbox of {name}", name="ana"), translated("en", "Seen")
    ('Posteingang von ana', 'Seen')
    """
    found = GERMAN_TEXTS.get(text, text) if language == "de" else text
    return found.format(**values) if values else found


def browser_language(accepted: str) -> str:
    """The first language of a header `Accept-Language` in which there are texts.

    >>> browser_language("de-AT,de;q=0.9,en;q=0.8"), browser_language("fr, *;q=0.5")
    ('de', 'en')
    """
    wanted = (part.strip()[:2].lower() for part in accepted.split(","))
    return next((language for language in wanted if language in LANGUAGES), LANGUAGES[0])
