"""Tool lists, questions that need a tool, and results, for the training text."""

# ruff: noqa: E501, SIM905 - tables read better as running text
from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import facts
from .frames import expand, fill
from .template import Tool

# name | description | parameter:kind … | questions (frames; a slot is a parameter)
KNOWN = """
get_weather | (Get|Gives|Returns) the (current |)weather (in|of|for) a city | city:place | (What is|What's|How is|Tell me|Show me) the weather (in|like in|for) {city}( today| now|)(?|.) ; (Is it|Will it be) (raining|sunny|cold|warm|nice) in {city}( today|)? ; Weather in {city}(?|, please.|) ; (I want|I need|I am curious) to (know|hear|see) (how|what) the weather (is|is like|will be) in {city}( tonight| this week| for my trip|)(?|.) ; (Would|Will) you (look at|look up|find out) the weather (in|of|for) {city}( tonight| for us| at the moment|)? ; I wonder what the sky looks like over {city} ; We are going to {city} tomorrow, do we need an umbrella? ; Do I need a coat in {city} today? ; {city} weather report please ; For {city}, what does the forecast say? ; My sister lives in {city}, is it hot there? ; Check the forecast for {city} (please|now|for me) ; Give me a weather report for {city}. ; Is there any snow in {city} right now? ; I am packing for {city}, will it rain there? ; How hot does it get in {city} today? ; Please check if the sun is shining in {city}. ; Does it look like rain over {city} this afternoon? ; I would love to know the temperature in {city}. ; In {city}, is it windy at the moment? ; Forecast needed for {city} as soon as possible. ; We fly to {city} soon, what weather should we expect? ; How many degrees does {city} have (now|today)? ; Can you tell me whether {city} is cold tonight? ; Let me know about the weather around {city} please. ; {city}: sun or rain? ; I heard there is a storm in {city}, is that true? ; My plan is a picnic in {city}, will it stay dry? ; What kind of weather does {city} have now? ; Should I take sunglasses to {city} tomorrow? ; Temperature and weather for {city} now. ; Please report the conditions in {city} for me. ; Before I drive to {city}, check the weather there.
get_time | (Get|Tells|Returns) the (current |local |)time in a (place|city) | city:place | What time is it in {city}( now|)? ; (Tell me|What is|Give me) the (time|local time|current time) in {city}(?|.) ; (I want|I need) to know (the time|what time it is|how late it is) in {city}( right now| at the moment|)(?|.) ; (Could|Would) you (say|find out) (what|the) time (it is |)in {city}( for us|)? ; What does the clock say in {city}? ; I wonder how late it is in {city} now. ; {city} local time please ; My friend is in {city}, what time is it there? ; Is it already night in {city}? ; Check the clock for {city} (please|now|for me). ; I want to call {city}, what time is it there? ; For {city}, tell me the local time. ; How late is it in {city} right now? ; Local time in {city} (please|now). ; In {city}, what time do they have? ; Are people in {city} asleep at this hour? ; Please look up the hour in {city}. ; We land in {city} soon, what is the time there? ; Let me know what time {city} has (now|please). ; Do you know the time over in {city}? ; I need the exact time for {city} please. ; {city}: what time is it there now? ; Which hour is it in {city} at the moment? ; Is it morning or evening in {city}? ; My boss flew to {city}, how late is it there? ; Please show the clock of {city} for me. ; I would like the current time of {city}. ; The time in {city} would help me. ; Before I phone {city}, tell me the time there. ; Can you check what time it is in {city} then? ; Time check for {city} please.
current_time | The time in a time zone | timezone:place | What is the time in {timezone}? ; What time is it in {timezone}? ; Tell me the time in {timezone} (please|now). ; {timezone} time right now please ; Which time do we have in {timezone}? ; I wonder what time {timezone} has now. ; For the time zone {timezone}, give me the time. ; Current time for {timezone} please. ; How late is it in the {timezone} zone? ; Show me the clock for {timezone}. ; Please check the current time in {timezone}. ; My clock should show {timezone}, what time is that? ; I need the time for {timezone} (now|please). ; Can you say how late it is in {timezone}? ; In {timezone}, how late is it now? ; What does a clock show in {timezone}? ; The meeting uses {timezone}, what time is it there? ; Give the hour in {timezone} for me. ; I would like to know the time for {timezone}. ; Do you have the current time of {timezone}? ; Let me see the time zone {timezone} please. ; {timezone}: what is the time there? ; What hour is it now in {timezone}? ; Time zone {timezone}, current time please. ; Could you look up the time of {timezone} now? ; We work with {timezone}, so tell me the time. ; Is it late in {timezone} already? ; Use the zone {timezone} and tell me the time. ; Right now in {timezone}, what time is it?
search | Search the (web|internet) | query:words | (Search|Search the web|Look|Google) for {query}(.|, please.) ; (Find|Look up|Search) {query}( on the web| online|)(.|, please.) ; (I want|I need|Could you start) a search (about|on|for) {query}(.|?)( It is for us.|) ; (Could|Would) you (search|look) for {query}( for us| again|)? ; I wonder what there is to read about {query} ; What does the web say about {query}? ; {query}: please search that for me. ; I am looking for {query} on the internet. ; Find me pages about the {query}. ; Search request about {query} (please|now). ; Show me results for {query} please. ; Are there any pages on {query}? ; My homework is about {query}, search for it. ; Let me read something about {query} now. ; Please run a search with the words {query}. ; Help me find out more about {query}. ; I want to learn about {query}, please search. ; Type {query} into the search box. ; We need information about a {query} for school. ; The topic is {query}, what can you find? ; Look around the internet for {query} (please|then). ; Could you dig up something on {query}? ; Get me the search results about {query}. ; Use the search tool with {query} please. ; Is there any news about {query} today? ; On the subject {query}, search the net. ; I would like some articles about {query}. ; Please search for my {query} (now|for me). ; Someone told me about {query}, look it up please. ; Tell me what you can find about {query}. ; Search for the word {query} and show me the answer.
web_search | (Search|Look up) something (online|on the web) | query:words | Search (the web|online|the internet) for {query}. ; Look up {query}(| online). ; I wonder what people write about {query} online ; Go online and look for {query}. ; Do a web search about {query} (please|now|for me). ; {query}: search the web for it please. ; What is there on the web about {query}? ; Can you check the internet for {query}? ; Find web pages about the {query}. ; I need a web search on {query} (please|now). ; Please see what the internet knows about {query}. ; The internet surely has something about {query}, please look. ; Show me websites about {query} for me. ; With a web search, find {query} please. ; Could you find {query} on the internet? ; I am curious about {query}, please search online. ; We want to read about {query} online. ; Browse the web for a {query}. ; Let us search for {query} on the web. ; About {query}, what does the internet say? ; Use the web to find {query} now. ; Any websites about {query} out there? ; Would you search online for my {query}? ; Start a web search with the word {query}. ; Web search: {query} please and thanks. ; I would like to find {query} online. ; Search engines should know {query}, please try. ; Get me the latest about {query} from the web. ; Please google the words {query} for me.
add | Add two numbers | a:number b:number | (Add|Please add|Sum) {a} and {b}(.|) ; What is {a} (plus|+) {b}? ; Use the tool to add {a} and {b}. ; (I want|I need|Could you give me) the sum of {a} and {b}(.|?) ; (Could|Would) you add {a} (and|to) {b}( for us| with the tool|)? ; What do {a} and {b} make together? ; How much is {a} and {b} together? ; {a} plus {b} please, quick. ; I wonder what {a} plus {b} is ; Take {a} and add {b} to it. ; I have {a} apples and get {b} more, how many now? ; Put {a} and {b} together and tell me the result. ; The sum of {a} and {b} please. ; If I add {a} to {b}, what do I get? ; How many are {a} and {b} in total? ; {a} and {b}, what is the total? ; Give me the total of {a} and {b} (please|now). ; Tell me how much {a} plus {b} makes. ; Please find the sum {a} plus {b} for me. ; We need {a} added to {b}. ; Count {a} and {b} together and show me the answer. ; Starting from {a}, add {b} then. ; Let me know what {a} added to {b} gives. ; Can you sum up {a} and {b} (please|for me)? ; My numbers are {a} and {b}, add them please. ; What does {a} plus {b} come to? ; Two numbers, {a} and {b}, please add them up. ; Does {a} plus {b} give a big number? ; I would like {a} and {b} added up. ; Do the addition of {a} and {b} now. ; With {a} in one box and {b} in another, how many? ; Sum wanted: {a} and {b} please. ; I paid {a} and then {b}, what is the total?
multiply | Multiply two numbers | a:number b:number | (Multiply|Please multiply) {a} (and|by|with) {b}. ; What is {a} times {b}? ; (I need|Could you give me) the product of {a} and {b}(.|?) ; (Could|Would) you multiply {a} (with|by|and) {b}( for us|)? ; How much is {a} times {b}? ; {a} times {b} please, quick. ; I wonder what {a} times {b} gives ; Take {a} and multiply it by {b}. ; Tell me what {a} multiplied by {b} is. ; If I multiply {a} by {b}, what do I get? ; The product of {a} and {b} please. ; What do I get for {a} times {b}? ; There are {a} boxes with {b} eggs each, how many eggs? ; {a} and {b}, what is their product? ; Please work out {a} times {b} (now|for me). ; We need {a} multiplied by {b}. ; My numbers are {a} and {b}, multiply them please. ; Let me know the product {a} times {b}. ; What does {a} times {b} make? ; Use the tool to multiply {a} with {b}. ; I would like {a} times {b} (please|now). ; Do the multiplication of {a} and {b} then. ; {a} rows of {b} chairs, how many chairs? ; Find {a} times {b} and show me the answer. ; Can you tell me {a} multiplied with {b}? ; Two numbers, {a} and {b}, please multiply them. ; How many are {a} times {b} in total? ; Give me {a} times {b} for my homework. ; Product wanted: {a} and {b} please. ; I buy {a} tickets for {b} each, what is the price? ; Is {a} times {b} a large number?
calculate | Evaluate an arithmetic expression | expression:sum | (Calculate|Compute|Evaluate|What is) {expression}(.|?|) ; How much is {expression} (please|then)? ; I wonder what {expression} is ; {expression} is what, please? ; Please solve {expression} and show me the answer. ; What do I get for {expression}? ; Tell me the result of {expression}. ; I need the answer to {expression} (now|please). ; My homework says {expression}, what is the result? ; Let me know what {expression} makes. ; Do the math for {expression} please. ; {expression}: what is the result? ; Could you calculate {expression} (for me|now)? ; Give me the value of {expression}. ; What does {expression} give? ; Find the answer for {expression} please. ; If I type {expression}, what comes out? ; We need the result for {expression} now. ; The calculator should do {expression} please. ; I would like to have {expression} calculated. ; Use the calculator for {expression}. ; Is {expression} a big number? ; What is the solution of {expression}? ; Help me with {expression} please. ; What does {expression} come to? ; Answer needed for {expression} (now|please). ; Work out the sum {expression} please. ; Solve this for me: {expression} please.
convert_currency | Convert (an amount of |)money from one currency to another | amount:number from:currency to:currency | Convert {amount} {from} (to|into) {to}. ; How (much|many {to}) is {amount} {from} in {to}? ; (Change|Exchange) {amount} {from} (to|into) {to}. ; (I have|I got) {amount} {from} and (want|need) {to}. ; (Could|Would) you (convert|change|exchange) {amount} {from} (into|to) {to}( for us| today|)? ; How many {to} do I get for {amount} {from}? ; {amount} {from} in {to} please ; I wonder how much {amount} {from} are in {to} ; In {to}, how much is {amount} {from}? ; What would {amount} {from} be in {to}? ; My wallet holds {amount} {from}, how much is that in {to}? ; Give me {amount} {from} in {to} (please|now). ; What are {amount} {from} worth in {to}? ; The hotel costs {amount} {from}, what is that in {to}? ; Turn {amount} {from} into {to} for me. ; I would like {to} for my {amount} {from}. ; Please tell me what {amount} {from} mean in {to}. ; We have {amount} {from} left and need {to} tomorrow. ; How much {to} will I get from {amount} {from}? ; I want to buy {to} with {amount} {from}. ; Show me the value of {amount} {from} in {to}. ; Swap {amount} {from} for {to} please. ; If I change {amount} {from}, how many {to} is that? ; Let me know the {to} for {amount} {from}. ; To {to} please, from {amount} {from}. ; From {from} to {to}, the amount is {amount}. ; A ticket is {amount} {from}, how many {to} is it? ; I need {to} and I have {amount} {from}. ; Is {amount} {from} a lot of money in {to}? ; Exchange my {amount} {from} to {to} now. ; Work out {amount} {from} in {to} and show me the answer. ; What do {amount} {from} cost in {to}? ; Please give the price in {to}, it is {amount} {from}.
get_stock_price | (Get|Returns) the price of a stock | symbol:word | (What is|Tell me|Get) the (stock price|price|share price) of {symbol}(?|.) ; How is the {symbol} stock( doing|)? ; (Could|Would) you (look up|find out) the (price|stock price) of {symbol}( for us|)? ; How much is a share of {symbol} (now|today)? ; I wonder what {symbol} shares cost ; {symbol} stock price please ; What does {symbol} cost on the market? ; Check the price of {symbol} (please|now|for me). ; Is {symbol} up or down today? ; I own {symbol}, what is the stock worth? ; Tell me how the shares of {symbol} stand. ; Give me a quote for {symbol} please. ; I want to buy {symbol}, how much is a share? ; For {symbol}, show me the stock price. ; Where does {symbol} trade right now? ; What are {symbol} shares worth today? ; Please look at the stock {symbol} for me. ; {symbol} shares, how much are they? ; How high is {symbol} at the moment? ; Stock quote for {symbol} (please|now). ; My father bought {symbol}, what is it worth now? ; Should I sell {symbol}, what is the price? ; The share called {symbol}, what does it cost? ; Let me see the current price for {symbol}. ; I need the value of {symbol} stock now. ; Do you know the stock price of {symbol} then? ; What do I pay for one {symbol} share? ; I would like to know the {symbol} price. ; How did {symbol} do on the market today? ; Market price of {symbol} and nothing else.
send_email | Send an (e-mail|email|message) to somebody | to:name subject:words | (Send|Write) (an email|a mail|an e-mail) to {to} about {subject}. ; (Email|Mail) {to} about {subject}. ; (Could|Would) you (write|send) (a mail|an email) to {to} about {subject}( for us|)? ; Tell {to} by mail about {subject} (please|now). ; I want to write to {to} about {subject}. ; Let {to} know about the {subject} by email. ; {to} should get an email about {subject}. ; An email about {subject} for {to} please. ; Please send {to} a message about {subject}. ; Write {to} a mail with the subject {subject}. ; With the subject {subject}, write an email to {to}. ; I need to send {to} something about {subject}. ; I wonder if you could mail {to} about {subject} ; Send a message about my {subject} to {to}. ; We have to inform {to} about {subject} (today|please). ; My friend {to} needs a mail about {subject}. ; Drop {to} a line about the {subject}. ; Email to {to}, subject {subject} please. ; Subject {subject}, send it to {to} now. ; Can you send {to} an email called {subject}? ; Please get in touch with {to} about {subject}. ; About {subject}, please write to {to}. ; Message {to} about a {subject} for me. ; I would like {to} to read about {subject}. ; Send off an email with subject {subject} to {to}. ; Let us write to {to} about our {subject}. ; Mail {subject} to {to} as soon as possible. ; {to} is waiting for my email about {subject}. ; Could you email {to} the {subject} (now|for me)? ; New email for {to} with the title {subject}. ; Remind {to} of the {subject} by email please.
set_timer | (Set|Start) a timer | minutes:number | (Set|Start) a timer (for|of) {minutes} minutes. ; (Wake me|Remind me) in {minutes} minutes. ; (I need|Give me) a timer (of|for) {minutes} minutes( now| for the oven|). ; (Would|Can) you start a timer (of|for) {minutes} minutes( for us|)? ; My tea needs {minutes} minutes, please set a timer. ; {minutes} minutes on the timer please ; I wonder if you could count down {minutes} minutes ; Count down {minutes} minutes (please|now|for me). ; Tell me when {minutes} minutes are over. ; Ring the bell after {minutes} minutes. ; Set a {minutes} minute timer please. ; The eggs must cook {minutes} minutes, start a timer. ; Let me know in {minutes} minutes please. ; I want a timer that runs {minutes} minutes. ; Timer, {minutes} minutes, start now. ; In {minutes} minutes, give me a signal. ; We need a break of {minutes} minutes, set the timer. ; Please put {minutes} minutes on the clock. ; Make the timer ring in {minutes} minutes. ; Can I have a {minutes} minute timer (please|now)? ; After {minutes} minutes the timer should ring. ; Start counting, I have {minutes} minutes. ; For {minutes} minutes, run a timer please. ; Would you wake me up in {minutes} minutes? ; I take a nap for {minutes} minutes, wake me then. ; The pizza is done in {minutes} minutes, remind me. ; I would like to be called in {minutes} minutes. ; Please start the countdown with {minutes} minutes. ; How about a timer for {minutes} minutes? ; Give me {minutes} minutes and then ring. ; Start the kitchen timer at {minutes} minutes. ; A timer over {minutes} minutes for the cake please.
set_alarm | Set an alarm | time:clock | (Set|Put) (an|the|my) alarm (for|at|to) {time}. ; Wake me at {time}. ; (Could|Would) you set an alarm (for|at) {time}( for us|)? ; I have to get up at {time} tomorrow. ; Wake me up at {time} (please|tomorrow). ; {time} alarm for tomorrow please ; I wonder if you could wake me at {time} ; Make the alarm ring at {time}. ; Alarm at {time} (please|tomorrow|now). ; At {time}, ring the alarm please. ; My train leaves early, set the alarm to {time}. ; I need an alarm for {time} tomorrow. ; Can you wake us at {time} (please|then)? ; Let the clock ring at {time} for me. ; Please make sure I am awake at {time}. ; I want to wake up at {time}. ; The alarm should go off at {time}. ; We have to leave at {time}, please set an alarm. ; Set the alarm clock for {time} please. ; Could you put an alarm on {time}? ; I must not sleep longer than {time}, wake me. ; For {time}, set a new alarm. ; {time} is when I want to wake up. ; Please have the alarm ready at {time} tomorrow. ; I would like to be woken at {time}. ; Get me out of bed at {time}. ; Is it possible to set an alarm for {time}? ; Tomorrow at {time} the alarm must ring. ; Add an alarm at {time} for me. ; Change my alarm to {time} please. ; School starts soon, so alarm at {time} please.
translate | Translate (a text|a word) into another language | text:word language:language | Translate {text} (to|into) {language}. ; (What is|How do you say) {text} in {language}? ; (Could|Would) you translate {text} (into|to) {language}( for us|)? ; I (need|want) {text} in {language}. ; What does {text} mean in {language}? ; I wonder how people say {text} in {language} ; In {language}, what is the word for {text}? ; {text} in {language} please ; How would a teacher say {text} in {language}? ; Give me the {language} word for {text}. ; Into {language} please, the word {text}. ; Put the word {text} into {language}. ; Tell me how to say {text} in {language} (please|now). ; I am learning {language}, what is {text} called? ; Please turn {text} into {language} for me. ; My {language} homework has the word {text}, translate it. ; Do you know {text} in {language}? ; Say {text} in {language} (please|for me|then). ; The word {text} to {language} please. ; How is {text} called in {language}? ; From English to {language}, please translate {text}. ; I would like to say {text} in {language}. ; Show me the {language} translation of {text}. ; Is there a {language} word for {text}? ; Translation of {text} to {language} needed. ; Could you write {text} in {language} (now|please)? ; What do {language} speakers say for {text}? ; Use {language} to say the word {text}. ; My friend speaks {language}, how do I say {text}? ; Find a translation for {text} in {language}. ; Let me hear a {text} in {language} please.
play_song | Play a song( of an artist|) | title:words | Play (the song |){title}(.|, please.) ; I want to hear {title}. ; (Could|Would) you play {title}( for us| now|)? ; Put on {title} (please|now|for me). ; I would love to listen to {title}. ; {title} is the song I want to hear. ; Can we hear the song called {title}? ; I wonder if you can play {title} ; Let me listen to {title} please. ; Music please, the song {title}. ; Start the song named {title}. ; My favorite song is {title}, please play it. ; We want to dance to {title} tonight. ; Do you have the song {title}? ; Please play my song {title} (now|again). ; How about some music, maybe {title}? ; I am in the mood for {title}. ; The song {title} would be nice now. ; Play something called {title} for me. ; Next song should be {title} please. ; It is time for {title}, start the music. ; Turn up the music and play {title}. ; Would you put on the song {title} then? ; Let the music begin with {title}. ; Sing along time, play {title} please. ; For my party, play the song {title}. ; Give us {title} on the speakers. ; I need to hear {title} (now|right now). ; Start playing the {title} please. ; Song request: {title} please and thanks. ; My mother loves {title}, can you play it?
find_restaurant | Find a restaurant in a (city|place) | city:place | (Find|Recommend|Show me) a restaurant in {city}. ; Where can I eat in {city}? ; (Could|Would) you (find|suggest) (us|me) a (good |nice |)restaurant in {city}( for tonight|)? ; (I am|We are) hungry (and|while) in {city}. ; We are going to {city}, where should we have dinner? ; I wonder where people eat well in {city} ; {city} restaurant wanted, please help ; Is there a good place to eat in {city}? ; In {city}, where can we have lunch? ; Dinner in {city}, where should I go? ; I need a table for dinner in {city} (tonight|tomorrow). ; Find us something to eat in {city} please. ; Which restaurants in {city} are good? ; My parents visit {city}, where can they eat? ; Look for a place to eat around {city}. ; Do you know a restaurant in {city}? ; I would like to have a meal in {city}. ; Where do they serve good food in {city}? ; Restaurant in {city} please, we are hungry. ; Please recommend somewhere to dine in {city}. ; For tonight in {city}, find me a restaurant. ; We want to eat out in {city} tomorrow. ; Tell me a nice place for food in {city}. ; Any good restaurants in {city} (now|then)? ; When I am in {city}, where should I eat? ; Get me a list of restaurants in {city}. ; I am looking for a restaurant in {city} (please|now). ; What is the best restaurant in {city}? ; Good food in {city}, where is it? ; A restaurant near the center of {city} please. ; Could you help us find dinner in {city}?
book_flight | Book a flight (from one city to another|between two cities) | origin:place destination:place | Book a flight from {origin} to {destination}. ; (I want|I need|I would like) to fly from {origin} to {destination}. ; (Could|Would) you (book|find|get) (us|me) a (flight|seat on a plane) from {origin} to {destination}( tomorrow| for us|)? ; (I must|We want to) (fly|go by plane) from {origin} to {destination}( soon|). ; I want a flight to {destination} from {origin} (please|tomorrow). ; To {destination} from {origin} by plane please. ; {origin} to {destination} by plane please ; We live in {origin} and want to fly to {destination}. ; I wonder if there is a flight from {origin} to {destination} ; Get me a plane ticket from {origin} to {destination}. ; I am in {origin} and need to fly to {destination}. ; From {origin}, I have to fly to {destination} tomorrow. ; Please book me a seat to {destination} from {origin}. ; My flight should go from {origin} to {destination}. ; Reserve a flight to {destination}, starting in {origin}. ; Can you get me to {destination} from {origin} by plane? ; Plane ticket {origin} to {destination}, one person. ; Fly me from {origin} to {destination} (please|now|tomorrow). ; I need to be in {destination}, flying from {origin}. ; Are there flights from {origin} to {destination} tomorrow? ; We leave {origin} and want to land in {destination}. ; Book us a trip by air from {origin} to {destination}. ; What about a flight to {destination} out of {origin}? ; My holiday starts in {origin}, please fly me to {destination}. ; Flight wanted to {destination}, leaving from {origin}. ; Flight wanted from {origin} to {destination} (now|please). ; Let us take a plane from {origin} to {destination}. ; Two tickets from {origin} to {destination} for a flight. ; I would like to visit {destination}, I fly from {origin}. ; Departure {origin}, arrival {destination}, book it please. ; My boss must fly to {destination} from {origin} tomorrow. ; Is it possible to book {origin} to {destination} for me?
find_route | Find a (route|way) | start:place end:place | (Find|Show me|Plan) (the|a) (route|way) from {start} to {end}. ; How do I (get|come|drive) from {start} to {end}? ; (Could|Would) you (find|plan) (us|me) a route from {start} to {end}( by car|)? ; I want to drive to {end} from {start}. ; {start} to {end} by car, which way? ; Which road goes from {start} to {end}? ; I wonder how to get to {end} from {start} ; We are in {start} and want to go to {end}. ; Give me directions from {start} to {end} (please|now). ; From {start}, how do I reach {end}? ; To {end} from {start}, what is the best way? ; What is the shortest way from {start} to {end}? ; Show me how to travel from {start} to {end}. ; My trip starts in {start} and ends in {end}. ; Please lead me from {start} to {end}. ; Directions to {end}, I start in {start}. ; I am lost in {start} and must get to {end}. ; Is there a good road from {start} to {end}? ; Take me from {start} to {end} (please|now|then). ; How can we get to {end} when we start in {start}? ; Route from {start} to {end} please. ; Route to {end} from {start} please. ; I need the fastest way from {start} to {end}. ; Tell me the way to {end} from {start}. ; We leave {start} tomorrow, how do we reach {end}? ; Map the way between {start} and {end} for me. ; Start in {start}, end in {end}, find a route. ; Let me see a route to {end} starting at {start}. ; Which way should I take from {start} to {end}? ; I would like to walk from {start} to {end}. ; Could you guide us from {start} to {end} tomorrow?
get_population | (Number of people|Population) of a (city|country) | place:place | (What is|Tell me) the population of {place}(?|.) ; How many people live in {place}? ; (Could|Would) you (tell me|find out) how many people live in {place}( for us|)? ; I wonder how many people there are in {place} ; {place} population please, roughly ; How big is the population of {place}? ; How many inhabitants does {place} have? ; Tell me how many people {place} has (now|please). ; In {place}, how many people are there? ; Is {place} a big place, how many live there? ; Population of {place} (please|now|for me). ; I need the number of people in {place}. ; What number of people call {place} home? ; My homework is about {place}, how many people live there? ; Do many people live in {place}? ; Please look up the population of {place} for me. ; For {place}, give me the number of inhabitants. ; How large is {place} in people? ; {place}: how many people live there? ; I would like to know the population of {place}. ; Check how many people live around {place}. ; Could you count the people of {place} for me? ; What is the number of citizens in {place}? ; We are going to {place}, how many people live there? ; Show how many inhabitants {place} has then. ; How many people are at home in {place}? ; Give me the population figure for {place} please. ; Let me know the population in {place}. ; Are there millions of people in {place}? ; People in {place}, how many are there?
turn_on | (Switch|Turn) on a (device|light) | device:thing | (Turn|Switch) on the {device}. ; (Turn|Switch) the {device} on. ; (Could|Would) you (turn|switch) on the {device}( for us|)? ; It is dark, I need the {device} on. ; The {device} should be on (now|please). ; I wonder if you could turn the {device} on ; {device} on please, right now ; Please start the {device} for me. ; Can I have the {device} on (please|now)? ; Make the {device} run (please|now). ; I want the {device} to be on. ; Power on the {device} please. ; Get the {device} going for me. ; My {device} is off, turn it on please. ; Switch my {device} on (please|now|for me). ; Let us have the {device} on tonight. ; Why is the {device} still off, turn it on. ; Put the {device} on for me. ; Would you start my {device} then? ; I am coming home, please turn on the {device}. ; We need a {device} that is on. ; Activate the {device} in my house. ; Please make sure the {device} is on. ; Give the {device} some power please. ; Turn on my {device} tomorrow (please|too). ; I would like to use the {device}, switch it on. ; The {device} please, switch it on. ; Is it possible to turn on the {device}? ; Turn our {device} on before the guests come. ; I cannot see, please turn on a {device}.
turn_off | (Switch|Turn) off a (device|light) | device:thing | (Turn|Switch) off the {device}. ; (Turn|Switch) the {device} off. ; (Could|Would) you (turn|switch) off the {device}( for us|)? ; I do not need the {device} any more, turn it off. ; The {device} should be off (now|please). ; I wonder if you could turn the {device} off ; {device} off please, right now ; Please stop the {device} for me. ; Can I have the {device} off (please|now)? ; Shut down the {device} (please|now|for me). ; I want the {device} to be off. ; Power off the {device} please. ; We are going to bed, turn off the {device}. ; My {device} is still on, turn it off please. ; Switch my {device} off (please|now|for me). ; Make the {device} stop (please|now). ; The {device} is too loud, switch it off. ; Why is the {device} still on, turn it off. ; Would you shut off my {device} then? ; I am leaving home, please turn off the {device}. ; Nobody uses the {device}, switch it off. ; Please make sure the {device} is off. ; Save power and turn off the {device}. ; Turn off my {device} tonight (please|too). ; Enough of the {device}, turn it off please. ; The {device} please, switch it off. ; Is it possible to turn off the {device}? ; Turn our {device} off before we leave. ; Cut the power of the {device} now. ; I would like to sleep, switch off a {device}. ; Let the {device} rest and turn it off.
create_event | (Create|Add) an event in the calendar | title:words day:day | (Create|Add|Put) (an event|a meeting) {title} on {day}. ; Put {title} in my calendar on {day}. ; On {day} I have {title}, please note it. ; {title} on {day}, add it to my calendar. ; I wonder if you could plan {title} for {day} ; Please add {title} to my calendar for {day}. ; We have a {title} on {day}, write it down. ; For {day}, plan an event called {title}. ; Save the date, {title} is on {day}. ; Make an event named {title} for {day} (please|then). ; {day} is the day for {title}, put it in. ; Note {title} in the calendar on {day} please. ; I need an event {title} on {day}. ; My calendar should show {title} on {day}. ; Schedule {title} for {day} (please|now|for me). ; On {day}, schedule the {title} please. ; Can you enter {title} into my calendar for {day}? ; I want to have my {title} on {day}. ; Plan the {title} on {day} for us. ; Do not let me forget {title} on {day}. ; New event on {day} with the title {title}. ; New event {title} on {day} please. ; Let us meet about {title} on {day}. ; Could you plan a meeting about {title} on {day}? ; Write {title} down for {day} in my calendar. ; The {title} takes place on {day}, add it please. ; Reserve {day} for {title} in my calendar. ; I would like {day} to be blocked for {title}. ; Set up {title} on {day} and tell me. ; My team has a {title} on {day}, please add it.
define_word | (Look up|Get) the (meaning|definition) of a word | word:word | (Define|Explain) (the word |){word}. ; What (is the meaning of|does) {word}( mean|)? ; I wonder what the word {word} means ; What does the word {word} mean (exactly|please)? ; {word} means what, please? ; Tell me the meaning of {word} (please|now). ; I do not know the word {word}, what is it? ; My teacher said {word}, what does it mean? ; Look up {word} in the dictionary. ; How would you define {word} (please|then)? ; Please explain what {word} means to me. ; The word {word}, what does it mean? ; What do people mean by {word}? ; I read about a {word}, what is that? ; Can you tell me what {word} means? ; I need the definition of the word {word}. ; In the dictionary, what does {word} stand for? ; Find out the meaning of {word} for me. ; What is meant by {word} in English? ; Let me know what {word} means (please|then). ; Definition of {word} (please|now|for me). ; {word}: what is the definition? ; Is there a meaning for the word {word}? ; Please look up the term {word} now. ; What exactly is a {word} supposed to be? ; I would like to understand the word {word}. ; Somebody called me {word}, what does that mean? ; Describe the meaning of {word} and show me the answer. ; We are learning the word {word}, please define it.
roll_dice | Roll dice | sides:number | Roll a (dice|die) with {sides} sides. ; Roll a {sides} sided die. ; (Could|Would) you roll a (die|dice) with {sides} sides( for us|)? ; I need a random roll with {sides} sides. ; Throw a die with {sides} sides (please|now|for me). ; {sides} sides on the die, roll it please ; I wonder what a {sides} sided die will show ; Take a die with {sides} sides and roll it. ; My die has {sides} sides, please roll. ; Let us play, roll {sides} sides. ; Roll the {sides} sided dice (please|now|again). ; Can you throw a {sides} sided die? ; With {sides} sides, roll the dice for me. ; Dice roll with {sides} sides please. ; The game needs a {sides} sided die, roll it. ; Please throw the dice, it has {sides} sides. ; I want to roll a die that has {sides} sides. ; Give me a roll of a {sides} sided die. ; What do you get on a {sides} sided die? ; It is my turn, roll a {sides} sided die. ; Use a die with {sides} sides and tell me. ; We play with {sides} sided dice, throw one please. ; Try your luck on a die with {sides} sides. ; A die with {sides} sides please, throw it. ; How about rolling {sides} sides for me? ; I would like a throw with {sides} sides. ; Let the dice decide, it has {sides} sides. ; One roll, {sides} sides, right now. ; If a die has {sides} sides, what do you roll? ; Could you roll something with {sides} sides then?
read_file | Read a file | path:path | (Read|Open|Show me|Print) (the file |){path}(.|, please.) ; What is in {path}? ; I wonder what is inside {path} ; What does the file {path} say? ; {path}: what is in it? ; Let me see the file {path} (please|now). ; Can you read {path} for me? ; I want to see the text of {path}. ; Tell me what {path} contains (please|now). ; Please open the file called {path}. ; The contents of {path} please. ; I need to read the file {path} now. ; What is written in {path} (please|then)? ; Look into the file {path} and tell me. ; My notes are in {path}, please read them. ; Could you show me what {path} contains? ; Get the text from the file {path}. ; Display the file {path} (please|for me). ; From {path}, read me the text. ; There is a file named {path}, open it please. ; Would you open my file {path}? ; I forgot what is in {path}, show me. ; Give me everything in the file {path}. ; Load {path} and show me the text. ; File {path}, read it out please. ; I would like to look at {path}. ; Take the file {path} and read it aloud. ; We saved the list in {path}, please open it. ; Please check the contents of {path} for me. ; Does {path} have any text in it?
list_files | List the files of a (folder|directory) | path:path | (List|Show) the files (in|of) {path}. ; Which files are in {path}? ; I wonder which files there are in {path} ; What is in the folder {path} (now|please)? ; {path}: which files are there? ; Let me see all files in {path}. ; Can you list {path} for me? ; Which documents are stored in {path}? ; Tell me what files {path} has (please|now). ; Please list everything in the directory {path}. ; The files in {path} please. ; I need a list of the files in {path}. ; What files do I have in {path}? ; Look into the folder {path} and list it. ; My photos are in {path}, list them please. ; Could you show me the folder {path} (now|please)? ; Give me the file names in {path}. ; Display the directory {path} (please|for me). ; In the folder {path}, what files are there? ; There is a folder named {path}, list its files. ; How many files are in the folder {path}? ; I forgot what files are in {path}, show me. ; Get me the names of all files from {path}. ; Folder {path}, list the files please. ; I would like to see the directory {path}. ; Go to {path} and list the files. ; We keep our files in {path}, please show them. ; Is there any file in {path} (now|then)? ; Please check which files are inside {path}. ; Directory listing of {path} for me please.
""".strip().splitlines()

SYNTHETIC_ONE = [
    "(What is|What's|Tell me|Show me|Give me|Get|Get me|Find|Look up|Check|I need|Fetch) the {noun} (of|for|in|from|at|to|on|with) {p}(?|.|)",
    "(Can|Could|Would|Will) you (please |)(get|find|check|look up|{verb}|show me|tell me) the {noun} (of|for|in|from|at|on) {p}?",
    "{Verb} (the|a|an|my|some|) {noun} (of|for|in|from|at|to|on|with|called|named|about) {p}(.|, please.|)",
    "(Please|I want you to|I would like to|I want to|I'd like to) {verb} (the|a|an|my|some|) {noun} (of|for|in|from|at|to|called|about) {p}.",
    "(Which|What) {noun} (is|are|does|do) (in|at|for|from|of|called|there in) {p}( have|)?",
    "{Verb} {p} (in|as|on|with|from|to) (the|a|my) {noun}(.|, please.|)",
    "(Use|Call|Run) {tool} (with|for|on) {p}(.|, please.|)",
    "(How|When|Where) is the {noun} (in|of|at|for) {p}( now| today|)?",
    "{Noun} (of|for|in|from) {p}(?|.|, please.|)",
]
SYNTHETIC_TWO = [
    "{Verb} (the|a|an|my|) {noun} (with|for|and use) (the |){pn} {p} and (the |){qn} {q}(.|, please.|)",
    "(Please|I want to|I would like to|Can you) {verb} (the|a|an|my|) {noun}: {pn} {p}, {qn} {q}(.|)",
    "(Use|Call|Run) {tool} with {pn} {p} and {qn} {q}(.|)",
    "(What is|Tell me|Get|Find|Show me) the {noun} (for|with|where|of) (the |){pn} (is |){p} and (the |){qn} (is |){q}(?|.)",
    "{Verb} (the|a|an|my|) {noun} with (the |){qn} {q} and (the |){pn} {p}(.|, please.|)",
]
# What people say after a value: the call must stop before it.
TAILS = [
    "(this|tomorrow|on Monday|early in the) (morning|afternoon|evening|night)",
    "(right now|tonight|today|tomorrow|at noon|at the moment|these days|later|this week|next month|for a day)",
    "(for me|for us|for my (brother|sister|friend|boss|team)|for a friend|if you can|when you can|if possible|again)",
    "(before|when|while|after|because|if) (I|we|you|they) (go|leave|wait|speak|travel|eat|sleep|start|say it)",
    "(do|would|can|could) (you|we|they|people) (know|suggest|like|have|say|see|offer|think|tell us)",
    "(as soon as possible|as a test|as quickly as you can|and tell me|and show it to me|with this tool)",
]
LISTS = Path(__file__).with_name("words")


def _listed(name: str) -> list[str]:
    return (LISTS / f"{name}.txt").read_text(encoding="ascii").split()


# What a search, an e-mail, a song or a device may be about or called: common words, a file for each kind.
NOUNS, OTHERS, NAMES, CITIES, STEMS, SONGS, SYMBOLS, DEVICES = (
    _listed(name) for name in ("nouns", "words", "names", "cities", "stems", "songs", "symbols", "devices")
)
WORDS = [*NOUNS, *OTHERS]
FREE_TEXT = ("word", "words", "thing")  # kinds of values that a tail could not be told from
CONSONANTS, VOWELS = (
    "b c d f g h j k l m n p r s t v w z br ch dr fl gr kl pr sh st th tr".split(),
    "a e i o u ai ea oo".split(),
)


@dataclass
class Task:
    """A question and the call that answers it."""

    tool: Tool
    question: str
    arguments: dict[str, object]


def odd_word(rng: random.Random) -> str:
    """A word that means nothing."""
    word = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(1, 3)))
    return word + rng.choice(["", "", rng.choice("nrstlmkd")])


def blended_word(rng: random.Random) -> str:
    """Pieces of words in a row, in any case: what may begin with any token has to be copied, not guessed."""
    word = "".join(_piece(rng) for _ in range(rng.choice([1, 2, 2, 3])))
    return rng.choice([word, word, word.title(), word.upper()])


def _piece(rng: random.Random) -> str:
    word = rng.choice(WORDS)
    start = rng.randrange(len(word) - 1)
    return word[start : start + rng.randint(2, 5)]


def _place(rng: random.Random) -> str:
    city = rng.choice([*facts.CAPITALS.values(), *facts.OTHER_CITIES])
    country = rng.choice(list(facts.CAPITALS)).removeprefix("the ")
    return rng.choice([city, country, rng.choice(CITIES), odd_word(rng).title(), blended_word(rng).title()])


def _number(rng: random.Random) -> int:
    return rng.randint(0, rng.choice([20, 100, 2000]))


def _name(rng: random.Random) -> str:
    return rng.choice(
        [rng.choice(facts.FIRST_NAMES), rng.choice(NAMES), odd_word(rng).title(), blended_word(rng).title()]
    )


def _word(rng: random.Random) -> str:
    odd = odd_word(rng)
    blended = blended_word(rng)
    return rng.choice(
        [
            rng.choice(WORDS),
            blended,
            blended.title(),
            blended[: rng.randint(2, 5)].upper(),
            rng.choice(WORDS),
            rng.choice(SONGS),
            rng.choice(SYMBOLS),
            rng.choice(facts.NOUNS),
            odd,
            odd.title(),
            odd.upper(),
        ]
    )


def _words(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice([rng.choice(WORDS), rng.choice(WORDS), rng.choice(SONGS), blended_word(rng)])
    choices = (WORDS, facts.NOUNS, facts.FILLERS, [odd_word(rng)])
    return " ".join(rng.choice(rng.choice(choices)) for _ in range(rng.randint(1, 3)))


def _clock(rng: random.Random) -> str:
    return rng.choice(
        [f"{rng.randint(0, 23)}:{rng.randint(0, 59):02}", f"{rng.randint(1, 12)} {rng.choice(['am', 'pm'])}"]
    )


def _thing(rng: random.Random) -> str:
    noun = rng.choice([rng.choice(DEVICES), rng.choice(facts.NOUNS), rng.choice(WORDS), blended_word(rng)])
    return rng.choice([noun, noun, odd_word(rng), rng.choice(["kitchen ", "garden ", "living room "]) + noun])


def _path(rng: random.Random) -> str:
    stem, folder = (
        rng.choice([odd_word(rng), rng.choice(STEMS), rng.choice(WORDS), rng.choice(NOUNS), blended_word(rng)])
        for _ in range(2)
    )
    return (
        rng.choice(["", "", "/tmp/", "docs/", f"{folder}/", f"/{folder}/"])
        + stem
        + rng.choice([".txt", ".md", ".py", ".csv", ""])
    )


def _sum(rng: random.Random) -> str:
    space = rng.choice([" ", ""])
    return f"{rng.randint(0, 99)}{space}{rng.choice('+-*/')}{space}{rng.randint(1, 99)}"


CURRENCIES = "EUR USD GBP JPY CHF SEK NOK CAD AUD euros dollars pounds yen".split()
LANGUAGES = "French German Spanish Italian Dutch Polish Greek Latin Japanese Chinese Swedish Turkish".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday today tomorrow".split()
VALUES: dict[str, Callable[[random.Random], object]] = {
    "place": _place,
    "number": _number,
    "name": _name,
    "word": _word,
    "words": _words,
    "currency": lambda rng: rng.choice(CURRENCIES),
    "clock": _clock,
    "language": lambda rng: rng.choice(LANGUAGES),
    "day": lambda rng: rng.choice(DAYS),
    "thing": _thing,
    "path": _path,
    "sum": _sum,
}


def value_of(kind: str, rng: random.Random) -> object:
    """A value for a parameter."""
    return VALUES[kind](rng)


def _declare(name: str, description: str, kinds: dict[str, str], rng: random.Random) -> Tool:
    properties: dict[str, dict[str, object]] = {}
    described = rng.random() < 0.12
    for parameter, kind in kinds.items():
        properties[parameter] = {"type": rng.choice(["number", "integer"]) if kind == "number" else "string"}
        if described:
            properties[parameter]["description"] = expand(
                "(The|A|Some|Which) (" + parameter.replace("_", " ") + "|{n})", rng
            ).replace("{n}", rng.choice(facts.NOUNS))
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if rng.random() < 0.6:
        schema["required"] = list(kinds)
    if rng.random() < 0.1:
        schema["additionalProperties"] = False
    function: dict[str, object] = {"name": name}
    if rng.random() < 0.85:
        function["description"] = description + rng.choice(["", "", "."])
    function["parameters"] = schema
    return {"type": "function", "function": function}


def _known(rng: random.Random) -> Task:
    name, description, parameters, questions = (part.strip() for part in rng.choice(KNOWN).split(" | ", 3))
    kinds = dict(parameter.split(":") for parameter in parameters.split())
    values = {parameter: value_of(kind, rng) for parameter, kind in kinds.items()}
    question = expand(rng.choice([q.strip() for q in questions.split(" ; ")]), rng)
    if rng.random() < 0.5:
        question = _with_more_words(question, kinds, rng)
    # Sometimes other names for the same thing: the call has to follow the list, not the memory.
    if rng.random() < 0.12:
        renamed = {
            p: rng.choice([p, rng.choice(facts.PARAMETERS), f"{p}_{rng.choice(facts.PARAMETERS)}"]) for p in kinds
        }
        if len(set(renamed.values())) == len(renamed):
            question = fill(question, {p: "{" + n + "\0}" for p, n in renamed.items()}).replace("\0", "")
            kinds = {renamed[p]: kind for p, kind in kinds.items()}
            values = {renamed[p]: value for p, value in values.items()}
        name = rng.choice(
            [name, name, name.split("_")[0] + "_" + rng.choice(facts.NOUNS), _synthetic_name(name.split("_"), rng)]
        )
    tool = _declare(name, expand(description, rng), kinds, rng)
    return Task(tool, fill(question, {p: str(v) for p, v in values.items()}), values)


def _with_more_words(question: str, kinds: dict[str, str], rng: random.Random) -> str:
    """The frame with a tail after a value and words that mean nothing elsewhere, but never beside a value of free text."""
    words = question.split(" ")
    free = {"{" + p + "}" for p, kind in kinds.items() if kind in FREE_TEXT}
    bounds = [
        i for i in range(len(words) + 1) if not any(slot in " ".join(words[max(0, i - 1) : i + 1]) for slot in free)
    ]
    tailed = [i for i in bounds if i and words[i - 1].rstrip(".?,!").endswith("}")]
    if tailed and rng.random() < 0.6:
        at = rng.choice(tailed)
        value = words[at - 1].rstrip(".?,!")
        words[at - 1 : at] = [value, expand(rng.choice(TAILS), rng) + words[at - 1][len(value) :]]
    elif bounds[:-1]:
        words.insert(rng.choice(bounds[:-1]), rng.choice(facts.FILLERS))
    return " ".join(words)


def _synthetic_name(words: list[str], rng: random.Random) -> str:
    style = rng.random()
    if style < 0.75:
        return "_".join(words)
    if style < 0.9:
        return words[0] + "".join(word.title() for word in words[1:])
    return rng.choice([words[-1], "-".join(words), odd_word(rng) + "_" + words[-1]])


def _synthetic(rng: random.Random) -> Task:
    verb, noun = rng.choice(facts.VERBS), rng.choice([*facts.NOUNS, odd_word(rng)])
    words = [verb, noun]
    shown = noun
    if rng.random() < 0.3:
        second = rng.choice([rng.choice(facts.NOUNS), odd_word(rng)])
        words, shown = [verb, noun, second], f"{noun} {second}"
    name = _synthetic_name(words, rng)
    parameters = rng.sample(facts.PARAMETERS, 2)
    if rng.random() < 0.2:
        parameters[0] = f"{rng.choice(facts.NOUNS)}_{parameters[0]}"
    numeric = {"number", "amount", "unit", "level", "value"}
    kinds = {
        p: "number"
        if p in numeric or rng.random() < 0.1
        else rng.choice(["place", "name", "word", "words", "place", "day", "language"])
        for p in parameters
    }
    one = rng.random() < 0.65
    if one:
        kinds.pop(parameters[1])
    values = {p: value_of(kind, rng) for p, kind in kinds.items()}
    slots = {"verb": verb, "Verb": verb.title(), "noun": shown, "Noun": shown.title(), "tool": name}
    slots |= {key: str(values[p]) for key, p in zip("pq", kinds, strict=False)}
    slots |= {key: p.replace("_", " ") for key, p in zip(("pn", "qn"), kinds, strict=False)}
    question = fill(expand(rng.choice(SYNTHETIC_ONE if one else SYNTHETIC_TWO), rng), slots)
    description = rng.choice(
        [f"{verb.title()} the {shown}", f"{verb.title()} a {shown}", f"{shown.title()}", f"Tool for the {shown}"]
    )
    return Task(_declare(name, description, kinds, rng), question, values)


def task(rng: random.Random) -> Task:
    """A question that one tool answers."""
    return _known(rng) if rng.random() < 0.75 else _synthetic(rng)


def tool_list(rng: random.Random, *wanted: Tool) -> list[Tool]:
    """The wanted tools among others, in any order."""
    others = [task(rng).tool for _ in range(rng.choice([0, 0, 1, 1, 2, 3] if len(wanted) == 1 else [0, 0, 0, 1, 2]))]
    named = {tool["function"]["name"]: tool for tool in [*others, *wanted]}
    tools = list(named.values())
    rng.shuffle(tools)
    return tools


def result(rng: random.Random) -> tuple[str, str]:
    """What a tool gives back, and how the assistant tells it."""
    if rng.random() < 0.4:
        pieces = [_scalar(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
        plain = rng.choice([" ", " ", ", "]).join(str(piece) for piece in pieces)
        return plain, f"The tool says: {plain}."
    keys = rng.sample(
        [*facts.NOUNS, *facts.PARAMETERS, "result", "result", "temperature", "answer", "status"],
        rng.choice([1, 1, 2, 2, 3]),
    )
    values = {rng.choice([key, key, f"{key}_{rng.choice(facts.NOUNS)}"]): _scalar(rng) for key in keys}
    told = [f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
    return json.dumps(values, ensure_ascii=False), f"The tool says: {', '.join(told)}."


def _scalar(rng: random.Random) -> object:
    match rng.randrange(8):
        case 0 | 1:
            return rng.randint(-20, 100)
        case 2:
            return rng.choice([rng.randint(0, 99999), round(rng.uniform(0, 100), 1), round(rng.uniform(0, 100), 2)])
        case 3:
            return rng.choice(
                [
                    True,
                    False,
                    "ok",
                    "done",
                    "sunny",
                    "cloudy",
                    "rainy",
                    "sent",
                    "clear sky",
                    "light rain",
                    "°C",
                    "21 °C",
                ]
            )
        case 4:
            return value_of("place", rng)
        case 5:
            return value_of("words", rng)
        case 6:
            return value_of("clock", rng)
    return value_of(rng.choice(["name", "word"]), rng)
