"""Small tables of facts, in English and Traditional Chinese, for the dialogue generator."""

# country, capital, continent, country (zh), capital (zh), language, currency
COUNTRIES = [row.split("|") for row in """France|Paris|Europe|法國|巴黎|French|euro
Germany|Berlin|Europe|德國|柏林|German|euro
Italy|Rome|Europe|義大利|羅馬|Italian|euro
Spain|Madrid|Europe|西班牙|馬德里|Spanish|euro
Portugal|Lisbon|Europe|葡萄牙|里斯本|Portuguese|euro
Austria|Vienna|Europe|奧地利|維也納|German|euro
Poland|Warsaw|Europe|波蘭|華沙|Polish|zloty
Norway|Oslo|Europe|挪威|奧斯陸|Norwegian|Norwegian krone
Sweden|Stockholm|Europe|瑞典|斯德哥爾摩|Swedish|Swedish krona
Denmark|Copenhagen|Europe|丹麥|哥本哈根|Danish|Danish krone
Finland|Helsinki|Europe|芬蘭|赫爾辛基|Finnish|euro
Greece|Athens|Europe|希臘|雅典|Greek|euro
Ireland|Dublin|Europe|愛爾蘭|都柏林|English and Irish|euro
Hungary|Budapest|Europe|匈牙利|布達佩斯|Hungarian|forint
the Netherlands|Amsterdam|Europe|荷蘭|阿姆斯特丹|Dutch|euro
the United Kingdom|London|Europe|英國|倫敦|English|pound sterling
the Czech Republic|Prague|Europe|捷克|布拉格|Czech|koruna
Iceland|Reykjavik|Europe|冰島|雷克雅維克|Icelandic|Icelandic krona
Russia|Moscow|Europe and Asia|俄羅斯|莫斯科|Russian|ruble
Ukraine|Kyiv|Europe|烏克蘭|基輔|Ukrainian|hryvnia
Turkey|Ankara|Asia and Europe|土耳其|安卡拉|Turkish|lira
Egypt|Cairo|Africa|埃及|開羅|Arabic|Egyptian pound
Kenya|Nairobi|Africa|肯亞|奈洛比|Swahili and English|Kenyan shilling
Morocco|Rabat|Africa|摩洛哥|拉巴特|Arabic|dirham
Nigeria|Abuja|Africa|奈及利亞|阿布札|English|naira
Ethiopia|Addis Ababa|Africa|衣索比亞|阿迪斯阿貝巴|Amharic|birr
Japan|Tokyo|Asia|日本|東京|Japanese|yen
South Korea|Seoul|Asia|南韓|首爾|Korean|won
China|Beijing|Asia|中國|北京|Chinese|yuan
Taiwan|Taipei|Asia|臺灣|臺北|Mandarin Chinese|New Taiwan dollar
India|New Delhi|Asia|印度|新德里|Hindi and English|Indian rupee
Thailand|Bangkok|Asia|泰國|曼谷|Thai|baht
Vietnam|Hanoi|Asia|越南|河內|Vietnamese|dong
the Philippines|Manila|Asia|菲律賓|馬尼拉|Filipino and English|Philippine peso
Malaysia|Kuala Lumpur|Asia|馬來西亞|吉隆坡|Malay|ringgit
Nepal|Kathmandu|Asia|尼泊爾|加德滿都|Nepali|Nepalese rupee
Iran|Tehran|Asia|伊朗|德黑蘭|Persian|rial
Israel|Jerusalem|Asia|以色列|耶路撒冷|Hebrew|shekel
Canada|Ottawa|North America|加拿大|渥太華|English and French|Canadian dollar
the United States|Washington, D.C.|North America|美國|華盛頓|English|US dollar
Mexico|Mexico City|North America|墨西哥|墨西哥城|Spanish|Mexican peso
Cuba|Havana|North America|古巴|哈瓦那|Spanish|Cuban peso
Brazil|Brasilia|South America|巴西|巴西利亞|Portuguese|real
Argentina|Buenos Aires|South America|阿根廷|布宜諾斯艾利斯|Spanish|Argentine peso
Chile|Santiago|South America|智利|聖地牙哥|Spanish|Chilean peso
Peru|Lima|South America|秘魯|利馬|Spanish|sol
Colombia|Bogota|South America|哥倫比亞|波哥大|Spanish|Colombian peso
Australia|Canberra|Oceania|澳洲|坎培拉|English|Australian dollar
New Zealand|Wellington|Oceania|紐西蘭|威靈頓|English and Maori|New Zealand dollar""".split("\n")]
CONTINENT_ZH = {"Europe": "歐洲", "Africa": "非洲", "Asia": "亞洲", "North America": "北美洲", "South America": "南美洲",
                "Oceania": "大洋洲", "Europe and Asia": "歐亞兩洲", "Asia and Europe": "歐亞兩洲"}

OPPOSITES = [p.split("-") for p in """hot-cold big-small fast-slow up-down early-late light-dark open-closed full-empty
old-young rich-poor strong-weak high-low wet-dry happy-sad loud-quiet hard-soft long-short thick-thin clean-dirty near-far
left-right first-last begin-end buy-sell win-lose love-hate day-night inside-outside true-false push-pull""".split()]
PLURALS = [p.split("-") for p in """child-children mouse-mice foot-feet tooth-teeth man-men woman-women leaf-leaves
knife-knives city-cities baby-babies box-boxes bus-buses goose-geese sheep-sheep fish-fish person-people life-lives
wolf-wolves story-stories dish-dishes potato-potatoes hero-heroes cat-cats book-books""".split()]
PAST = [p.split("-") for p in """go-went see-saw eat-ate take-took give-gave come-came run-ran write-wrote read-read
find-found think-thought buy-bought bring-brought catch-caught teach-taught sing-sang swim-swam drink-drank drive-drove
speak-spoke break-broke fly-flew know-knew sleep-slept keep-kept leave-left make-made walk-walked play-played""".split()]
ELEMENTS = [p.split("-") for p in """hydrogen-H-氫 helium-He-氦 carbon-C-碳 nitrogen-N-氮 oxygen-O-氧 sodium-Na-鈉
magnesium-Mg-鎂 aluminium-Al-鋁 silicon-Si-矽 sulfur-S-硫 chlorine-Cl-氯 potassium-K-鉀 calcium-Ca-鈣 iron-Fe-鐵
copper-Cu-銅 zinc-Zn-鋅 silver-Ag-銀 tin-Sn-錫 gold-Au-金 mercury-Hg-汞 lead-Pb-鉛""".split()]
PLANETS = [p.split("-") for p in "Mercury-水星 Venus-金星 Earth-地球 Mars-火星 Jupiter-木星 Saturn-土星 Uranus-天王星 Neptune-海王星".split()]
UNITS = [("kilometers", "meters", 1000), ("meters", "centimeters", 100), ("kilograms", "grams", 1000), ("hours", "minutes", 60),
         ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7), ("years", "months", 12), ("liters", "milliliters", 1000),
         ("feet", "inches", 12), ("yards", "feet", 3), ("centimeters", "millimeters", 10), ("tons", "kilograms", 1000)]
UNITS_ZH = [("公里", "公尺", 1000), ("公尺", "公分", 100), ("公斤", "公克", 1000), ("小時", "分鐘", 60), ("分鐘", "秒", 60),
            ("天", "小時", 24), ("週", "天", 7), ("年", "個月", 12), ("公升", "毫升", 1000)]

# question (en), answer (en), question (zh), answer (zh)
GENERAL = [row.split("|") for row in """How many days are in a week?|There are seven days in a week.|一個星期有幾天？|一個星期有七天。
How many months are in a year?|There are twelve months in a year.|一年有幾個月？|一年有十二個月。
How many hours are in a day?|There are twenty-four hours in a day.|一天有幾個小時？|一天有二十四個小時。
What color is the sky on a clear day?|On a clear day the sky is blue.|晴天的天空是什麼顏色？|晴天的天空是藍色的。
What do bees make?|Bees make honey.|蜜蜂會製造什麼？|蜜蜂會製造蜂蜜。
Which planet do we live on?|We live on the planet Earth.|我們住在哪一顆行星上？|我們住在地球上。
Which planet is the largest in the solar system?|Jupiter is the largest planet in the solar system.|太陽系最大的行星是哪一顆？|太陽系最大的行星是木星。
What is the star at the center of the solar system?|The Sun is the star at the center of the solar system.|太陽系的中心是什麼？|太陽系的中心是太陽。
At what temperature does water freeze?|Water freezes at zero degrees Celsius.|水在幾度結冰？|水在攝氏零度結冰。
At what temperature does water boil?|At sea level, water boils at one hundred degrees Celsius.|水在幾度沸騰？|在海平面上，水在攝氏一百度沸騰。
What is water made of?|Water is made of hydrogen and oxygen.|水是由什麼組成的？|水是由氫和氧組成的。
What do plants need to grow?|Plants need light, water, air and nutrients to grow.|植物生長需要什麼？|植物生長需要陽光、水、空氣和養分。
How many legs does a spider have?|A spider has eight legs.|蜘蛛有幾隻腳？|蜘蛛有八隻腳。
How many legs does an insect have?|An insect has six legs.|昆蟲有幾隻腳？|昆蟲有六隻腳。
What is the longest river in Africa?|The Nile is the longest river in Africa.|非洲最長的河是哪一條？|非洲最長的河是尼羅河。
What is the highest mountain on Earth?|Mount Everest is the highest mountain on Earth.|世界最高的山是哪一座？|世界最高的山是聖母峰。
Which ocean is the largest?|The Pacific Ocean is the largest ocean.|最大的海洋是哪一個？|最大的海洋是太平洋。
Who wrote Romeo and Juliet?|William Shakespeare wrote Romeo and Juliet.|《羅密歐與茱麗葉》是誰寫的？|《羅密歐與茱麗葉》是莎士比亞寫的。
Who wrote Journey to the West?|Journey to the West is attributed to Wu Cheng'en.|《西遊記》的作者是誰？|一般認為《西遊記》的作者是吳承恩。
What gas do we need to breathe?|We need oxygen to breathe.|我們呼吸需要什麼氣體？|我們呼吸需要氧氣。
How many sides does a triangle have?|A triangle has three sides.|三角形有幾個邊？|三角形有三個邊。
How many minutes are in an hour?|There are sixty minutes in an hour.|一小時有幾分鐘？|一小時有六十分鐘。
What is the opposite of north?|The opposite of north is south.|北方的相反是什麼方向？|北方的相反是南方。
Which season comes after winter?|Spring comes after winter.|冬天之後是什麼季節？|冬天之後是春天。
What do we call frozen water?|Frozen water is called ice.|結冰的水叫做什麼？|結冰的水叫做冰。
Which animal is known as the king of beasts?|The lion is known as the king of beasts.|哪一種動物被稱為百獸之王？|獅子被稱為百獸之王。
What is the largest animal?|The blue whale is the largest animal.|最大的動物是什麼？|最大的動物是藍鯨。
What is a computer program?|A computer program is a list of instructions that a computer carries out.|什麼是電腦程式？|電腦程式是一連串讓電腦執行的指令。
What is a library?|A library is a place where books are kept and can be read or borrowed.|什麼是圖書館？|圖書館是收藏書籍、供人閱讀和借閱的地方。
Why do we sleep?|We sleep so that the body and the mind can rest and recover.|我們為什麼要睡覺？|睡覺可以讓身體和頭腦休息並恢復精神。
Why does it rain?|Water vapor in the air cools, turns into drops in the clouds, and falls down as rain.|為什麼會下雨？|空氣中的水氣冷卻後在雲裡變成水滴，落下來就成了雨。
Why is the sky blue?|Air scatters blue light more than red light, so the sky looks blue.|天空為什麼是藍色的？|空氣散射藍光比散射紅光多，所以天空看起來是藍色的。
What is the moon?|The moon is a natural satellite that moves around the Earth.|月亮是什麼？|月亮是繞著地球轉的天然衛星。
Why do leaves look green?|Leaves look green because they contain chlorophyll.|葉子為什麼是綠色的？|葉子因為含有葉綠素，所以看起來是綠色的。""".split("\n")]

# English word - Traditional Chinese word
LEXICON = [p.split("-") for p in """cat-貓 dog-狗 horse-馬 cow-牛 sheep-羊 pig-豬 bird-鳥 fish-魚 rabbit-兔子 tiger-老虎 bear-熊
mouse-老鼠 duck-鴨子 frog-青蛙 water-水 fire-火 earth-土 mountain-山 river-河 sea-海 sky-天空 sun-太陽 moon-月亮 star-星星
rain-雨 snow-雪 wind-風 tree-樹 flower-花 grass-草 house-房子 door-門 window-窗戶 table-桌子 chair-椅子 bed-床 book-書 pen-筆
paper-紙 letter-信 school-學校 teacher-老師 student-學生 doctor-醫生 friend-朋友 mother-母親 father-父親 child-孩子 king-國王
rice-米飯 bread-麵包 tea-茶 coffee-咖啡 milk-牛奶 apple-蘋果 orange-橘子 banana-香蕉 egg-蛋 meat-肉 soup-湯 sugar-糖 salt-鹽
car-汽車 train-火車 bus-公車 ship-船 airplane-飛機 bicycle-腳踏車 road-路 bridge-橋 city-城市 village-村莊 country-國家 park-公園
library-圖書館 hospital-醫院 station-車站 market-市場 shop-商店 restaurant-餐廳 museum-博物館 computer-電腦 telephone-電話
music-音樂 song-歌 picture-圖畫 story-故事 word-字 language-語言 number-數字 time-時間 day-日子 night-夜晚 morning-早上
evening-晚上 spring-春天 summer-夏天 autumn-秋天 winter-冬天 hand-手 foot-腳 eye-眼睛 ear-耳朵 head-頭 heart-心 red-紅色 blue-藍色
green-綠色 white-白色 black-黑色 yellow-黃色 big-大 small-小 new-新 old-舊 good-好 happy-快樂 beautiful-美麗 fast-快 slow-慢""".split()]

# For whole sentences in both languages: subject, verb (third person) and object, place
SUBJECTS = [p.split("-") for p in """The cat-那隻貓 The dog-那隻狗 My friend-我的朋友 The teacher-那位老師 The doctor-那位醫生
The student-那個學生 The child-那個孩子 My mother-我的母親 The king-那位國王 My father-我的父親 The old man-那位老人""".replace("\n", " ").replace(" The", "\nThe").replace(" My", "\nMy").split("\n")]
ACTS = [p.split("-") for p in """drinks water-喝水|drinks tea-喝茶|eats an apple-吃一顆蘋果|eats bread-吃麵包|reads a book-讀一本書|writes a letter-寫一封信
|listens to music-聽音樂|sings a song-唱一首歌|looks at the moon-看月亮|buys flowers-買花|tells a story-說一個故事|plants a tree-種一棵樹
|learns Chinese-學中文|waits for the train-等火車|opens the window-打開窗戶|cleans the table-清理桌子|draws a picture-畫一張圖|cooks soup-煮湯""".replace("\n", "").split("|")]
WHERE = [p.split("-") for p in """in the park-在公園裡|in the school-在學校裡|in the kitchen-在廚房裡|at the station-在車站|in the library-在圖書館裡
|at home-在家裡|in the city-在城市裡|in the village-在村莊裡|by the river-在河邊|in the restaurant-在餐廳裡""".replace("\n", "").split("|")]
WHEN = [p.split("-") for p in "in the morning-早上|in the evening-晚上|every day-每天|on Sunday-星期天|today-今天|in summer-夏天|in winter-冬天".split("|")]


def sentence_pair(rng):
    """An English sentence and the same in Traditional Chinese."""
    (s, sz), (a, az) = rng.choice(SUBJECTS), rng.choice(ACTS)
    (w, wz), (t, tz) = rng.choice(WHERE), rng.choice(WHEN)
    use_where, use_when = rng.random() < 0.6, rng.random() < 0.5
    en = f"{s} {a}" + (f" {w}" if use_where else "") + (f" {t}" if use_when else "") + "."
    return en, sz + (tz if use_when else "") + (wz if use_where else "") + az + "。"
