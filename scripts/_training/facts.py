"""The small tables that all training text is made from."""

# ruff: noqa: E501, SIM905 - tables read better as running text
from __future__ import annotations

CAPITALS: dict[str, str] = dict(
    line.strip().split(": ")
    for line in """
    France: Paris; Italy: Rome; Spain: Madrid; Portugal: Lisbon; Germany: Berlin; Austria: Vienna
    Switzerland: Bern; Belgium: Brussels; the Netherlands: Amsterdam; Luxembourg: Luxembourg City; Denmark: Copenhagen
    Sweden: Stockholm; Norway: Oslo; Finland: Helsinki; Iceland: Reykjavík; Ireland: Dublin; the United Kingdom: London
    Poland: Warsaw; the Czech Republic: Prague; Slovakia: Bratislava; Hungary: Budapest; Slovenia: Ljubljana
    Croatia: Zagreb; Serbia: Belgrade; Bulgaria: Sofia; Romania: Bucharest; Greece: Athens; Albania: Tirana
    Estonia: Tallinn; Latvia: Riga; Lithuania: Vilnius; Ukraine: Kyiv; Russia: Moscow; Turkey: Ankara; Cyprus: Nicosia
    Malta: Valletta; Georgia: Tbilisi; Armenia: Yerevan; Egypt: Cairo; Morocco: Rabat; Tunisia: Tunis; Algeria: Algiers
    Kenya: Nairobi; Ethiopia: Addis Ababa; Ghana: Accra; Nigeria: Abuja; Senegal: Dakar; Uganda: Kampala
    Rwanda: Kigali; Zambia: Lusaka; Zimbabwe: Harare; Angola: Luanda; Namibia: Windhoek; Madagascar: Antananarivo
    Cameroon: Yaoundé; China: Beijing; Japan: Tokyo; South Korea: Seoul; India: New Delhi; Pakistan: Islamabad
    Nepal: Kathmandu; Thailand: Bangkok; Vietnam: Hanoi; Indonesia: Jakarta; Malaysia: Kuala Lumpur
    the Philippines: Manila; Mongolia: Ulaanbaatar; Iran: Tehran; Iraq: Baghdad; Jordan: Amman; Lebanon: Beirut
    Saudi Arabia: Riyadh; Qatar: Doha; Oman: Muscat; Australia: Canberra; New Zealand: Wellington; Canada: Ottawa
    the United States: Washington; Mexico: Mexico City; Cuba: Havana; Jamaica: Kingston; Costa Rica: San José
    Panama: Panama City; Colombia: Bogotá; Venezuela: Caracas; Ecuador: Quito; Peru: Lima; Bolivia: Sucre
    Chile: Santiago; Argentina: Buenos Aires; Uruguay: Montevideo; Paraguay: Asunción; Brazil: Brasília
    """.replace("\n", ";").split(";")
    if line.strip()
)

ALIASES: dict[str, list[str]] = {
    "the United States": ["the USA", "the US", "America", "the United States of America"],
    "the United Kingdom": ["the UK", "Great Britain", "Britain", "England"],
    "the Netherlands": ["Holland"],
    "the Czech Republic": ["Czechia"],
}

GREETING = "Hello! How can I help you? 👋"
FEELING = "I am fine, thank you! How can I help you? 🙂"
THANKS = "You are welcome! 🙂"
GOODBYE = "Goodbye! 👋"
IDENTITY = "I am a small demo model, a toy to try genai-server with."
ABILITIES = "I can name capitals, add and subtract, count, call tools and answer questions about this server."
UNKNOWN = "I am only a small demo model and do not know that."

# What the server answers to: topic -> (what people call it, the answer).
ENDPOINTS: dict[str, tuple[str, str]] = {
    "chat": (
        "(gives|returns|sends) (a|one|the) (simple |plain |whole |full |)(chat |)(answer|reply) (at once|in one piece|)"
        "|(answers|takes) a (simple|plain|normal|single) (chat|chat message|chat request|message)",
        "POST /v1/chat gives a whole answer at once.",
    ),
    "stream": (
        "(streams|sends|streams back) (the |an |)(answer|answers|tokens|reply|output)( token by token| as a stream|)"
        "|(does|offers|supports|is for) (streaming|a stream|a streamed answer|streamed answers|token streams)",
        "POST /v1/chat/stream streams the answer token by token.",
    ),
    "openai": (
        "(is|looks) (compatible with|like) (the |)OpenAI( API|)|(speaks|follows|understands) (the |)OpenAI( API| format|)"
        "|(works with|serves|is for) (the |an |)OpenAI (client|clients|library|API|SDK)|does chat completions",
        "POST /v1/chat/completions speaks the OpenAI API.",
    ),
    "models": (
        "(lists|shows|names|tells) (the |all |all the |available |)(loaded |)models|(gives|returns) (the |a )(list of |)models"
        "|tells (which|what) models (there are|are loaded|are available)",
        "GET /v1/models lists the models.",
    ),
    "health": (
        "(tells|says|shows|checks) (whether|if|that) the server (is alive|is healthy|is up|lives)"
        "|(is for|does|answers) (a |the |)(health|liveness) (check|checks|probe)|(reports|shows|tells) (the |)(health|liveness)",
        "GET /healthz tells whether the server is alive.",
    ),
    "ready": (
        "(tells|says|shows|checks) (whether|if|that) (the server|the model|the engine|it) is (ready|loaded|ready to serve)"
        "|(is for|does|answers) (a |the |)(readiness|ready) (check|checks|probe)|(reports|shows|tells) (the |)readiness",
        "GET /readyz tells whether the server is ready.",
    ),
    "terminate": (
        "(stops|terminates|cancels|ends|aborts|kills) (a |the |one |)(running |current |)(generation|session|answer|run|request)",
        "POST /v1/admin/runtime_options with terminate_session stops a running generation.",
    ),
    "profiling": (
        "(switches|turns) (on |)(the |)(profiling|profiler|profiles)( on|)|(starts|enables|does|records) (the |a |)"
        "(profiling|profiler|profile|profiles)|(profiles|measures) (the |)(tokens|a generation|every token)",
        "POST /v1/admin/runtime_options with enable_profiling switches profiling on.",
    ),
}

SETTINGS: dict[str, tuple[str, str]] = {
    "model": (
        "(sets|chooses|names|gives|tells|selects|picks) (the |)(model|model directory|model folder|model path|path of the model)"
        "|(says|tells) where the model (is|lies)",
        "GENAI_MODEL_DIR sets the model directory.",
    ),
    "device": (
        "(sets|chooses|selects|picks|decides) (the |)(device|GPU or CPU|CPU or GPU|hardware)"
        "|(puts|runs|moves) (the |)model on (the |a |)(GPU|CUDA|CPU|device)",
        "GENAI_DEVICE sets the device.",
    ),
    "length": (
        "(sets|limits|changes|bounds|caps) (the |)(length|maximum length|max length|context length|longest length|number of tokens)",
        "GENAI_MAX_LENGTH sets the maximum length.",
    ),
    "host": (
        "(sets|chooses|changes|decides) (the |)(host|address|host name|network address|interface|IP address)",
        "HOST sets the address; the default is 127.0.0.1.",
    ),
    "port": (
        "(sets|chooses|changes|decides) (the |)(port|port number|TCP port|server port)",
        "PORT sets the port; the default is 8002.",
    ),
    "workers": (
        "(sets|chooses|changes|decides) (the |)(number of |count of |)(workers|worker processes|processes|API processes)"
        "|(starts|adds|gives) more (workers|worker processes|processes)",
        "WORKERS sets the number of API processes.",
    ),
    "reload": (
        "(switches|turns) (on |)(the |)(reload|reloading|auto reload|automatic reload)( on|)"
        "|(reloads|restarts) the (server|code) (on|after|when there are|at) (changes|a change|every change|code changes)",
        "RELOAD restarts the server when its code changes.",
    ),
    "key": (
        "(sets|holds|is|contains) (the |)(admin key|API key|admin API key|key of the admin|admin password|secret key)"
        "|(protects|guards|secures|locks) (the |)(admin|admin API|admin endpoints|admin routes)",
        "GENAI_ADMIN_API_KEY sets the key of the admin endpoints.",
    ),
    "profiles": (
        "(sets|chooses|says|decides) (the |)(profile directory|profile folder|folder of the profiles|directory for profiles)"
        "|(says|tells|decides) where (the |)(profiles|profile files|profiling files) (go|are written|are stored|are saved)",
        "GENAI_PROFILE_DIR sets the directory of the profiles.",
    ),
}

DEFAULT_ADDRESS = "The default address is http://127.0.0.1:8002."

FIRST_NAMES = (
    "Anna Ben Carla David Emma Felix Greta Hugo Ines Jonas Karin Leo Mara Nils Olga Paul Rosa Sam Tina Uwe Vera Will Yara Zoe"
).split()
OTHER_CITIES = (
    "Milan Porto Seville Hamburg Munich Geneva Antwerp Malmo Bergen Krakow Brno Split Lyon Naples Leeds Cork Varna Kazan Izmir"
    " Oxford Boston Chicago Dallas Denver Seattle Toronto Sydney Perth Mumbai Osaka Kyoto Busan Shanghai Lagos Mombasa Durban"
).split()
NOUNS = (
    "weather time forecast price news recipe stock train bus flight hotel ticket song movie book word street route map photo"
    " file folder message mail letter meeting event alarm timer reminder note task list order invoice customer product"
    " package device light lamp door window heater music radio channel score match team player game level user account"
    " balance payment currency rate temperature humidity wind rain snow traffic parking library museum restaurant table"
    " menu dish wine coffee tea garden plant flower animal dog cat bird fish horse doctor patient medicine hospital school"
    " course lesson teacher student exam grade paper article author quote poem story joke fact number color shape size weight"
    " distance height speed energy water gas oil battery engine car bike boat ship plane rocket planet star moon sun ocean"
    " river lake mountain forest island beach city country village house room kitchen chair desk phone computer server"
    " database record table column row code function bug test branch commit issue log status report chart"
).split()
VERBS = (
    "get find search lookup fetch show check read load open start stop create make add send delete remove update set change"
    " move copy rename book order buy sell pay reserve cancel play pause count compute calculate convert translate measure"
    " list print draw plan schedule track call invite share save store test run build"
).split()
PARAMETERS = (
    "city name title place location country topic query text word subject person user id item product date day time number"
    " amount value unit level color size language address street code key path file target source origin destination from to"
    " category type kind label message content recipient station airport team author"
).split()
FILLERS = (
    "really just now today maybe actually quickly again also here then so well okay right simply exactly kindly briefly"
    " there still already perhaps once more finally first next always only even much very quite too soon later please sir"
    " friend buddy dear hey um oh yes no my our your this that these some any every about with without for from into over"
    " under after before since during between because when while if as is are was were be been do does did have has had"
    " can could will would shall should may might must need want like know think say tell give take make see look find use"
    " work help ask show try call name thing way part place case week day year hour school work house world life hand"
    " good new old great small big long short easy hard quick nice fine sure certain known official main major correct"
).split()
